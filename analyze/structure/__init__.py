"""WHO and WHERE: one module per question, each a pure function from the tables to findings."""
