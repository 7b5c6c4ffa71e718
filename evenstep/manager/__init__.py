"""The manager: the paper's BatchSizeManager as a service, and the client that talks to it.

A thin layer around the session of each job; `manager.thrift` defines the protocol.
"""
