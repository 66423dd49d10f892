"""What processes did in collectives, as rows of one table, and the questions that every source of rows is asked: who
differs, and who is behind.

Logs, Flight Recorder dumps, NCCL RAS reports, run directories and stacks produce rows. No question looks at where a row
comes from."""
