"""Operations of work queues: redrives, cancelled delays, routes, requests."""
