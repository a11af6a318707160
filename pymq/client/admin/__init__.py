"""Administration: topics, groups, requests with retries."""
