"""NCCL RAS (NCCL 2.24 and newer): reads its reports, asks a running job for them, and says who is behind or gone.

``client`` asks, ``report`` and ``text`` are the two forms of an answer, ``read`` finds them in files, ``clues`` judges.
Formats and protocol are those of NCCL's src/ras/client_support.cc and client.cc, v2.24.3 to v2.30.7.
"""
