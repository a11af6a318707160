"""Who may do what: rules, what each message needs, how much of it, and what was refused."""
