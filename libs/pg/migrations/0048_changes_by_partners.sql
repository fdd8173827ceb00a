-- serves: 24
-- Changes that partners make themselves are recorded beside those of operators, and what stood there was kept for ever. They
-- have a term of their own now, so that no partner fills the record of operators. The term `audit` ends them as well.
INSERT INTO walks (name, days) VALUES ('changes', 90);
