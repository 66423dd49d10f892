"""What the analysis is made of: steps, accounts, findings, verdicts and tables, as data without behaviour."""
