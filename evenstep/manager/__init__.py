"""The manager: the paper's BatchSizeManager as a service, and the client that talks to it.

A thin shell around the session of each job: what is said on the wire is in `manager.thrift`.
"""
