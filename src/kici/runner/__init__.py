"""The program that runs the steps of one job: `python -I -m kici.runner`, with its host on the socket at descriptor 3.

It is started by an agent's sandbox or by `kici run local`, imports the workflow, runs the steps in order and exits. It
holds no token and knows no network address: what it needs it asks its host for.
"""
