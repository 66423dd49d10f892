"""Runs on an object store or a server: files at an address, and the segments that packers of nodes write there."""
