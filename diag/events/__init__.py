"""What processes did, as rows of one table, and the questions that every source of rows is asked: who differs, who is
behind, who left, and who said so.

Logs, Flight Recorder dumps, NCCL RAS reports, run directories and stacks produce rows. No question looks at where a row
comes from."""
