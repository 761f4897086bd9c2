"""Trials on other machines: a cluster places the workers, our own connections carry what they say.

cluster_engine.py  the engine: which attempt is in which worker on which node
cluster_pool.py    workers, porters and nodes, as the driver's one thread sees them
placement.py       what is free on which node, and where the next worker goes
bridge.py          talks to Ray: places workers, hears of nodes and of deaths
actor_worker.py    what runs in a Ray actor: the same worker as on this machine, on a connection that it dials itself
porter.py          one process on each node: scratch directory, transfers, output, the end of what a worker left
courier.py         the driver's transfers, in threads, and what is known about the files of each node
carrier.py         directories over a connection, in pieces with checksums
handshake.py, door.py   connections with a lease, and the handshake on them
"""
