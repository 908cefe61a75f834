"""HTTP in, durable event rows out. A sender gets its 2xx after the commit, or a status and a sentence."""
