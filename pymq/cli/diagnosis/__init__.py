"""Why can I not connect, and why is nothing delivered?"""
