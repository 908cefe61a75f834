"""The server: webhooks in, runs recorded, jobs dispatched, logs kept. `app.py` is the list of what runs."""
