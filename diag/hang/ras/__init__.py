"""NCCL RAS (NCCL 2.24 and newer): which ranks are behind or gone, from reports in files or of a running job.

``client`` asks a job, ``report`` reads JSON, ``read`` reads text and finds reports in files, ``clues`` judges them,
``live`` follows a run for the dashboard.
Formats and protocol are those of NCCL's src/ras/client_support.cc and client.cc, v2.24.3 to v2.30.7.
"""
