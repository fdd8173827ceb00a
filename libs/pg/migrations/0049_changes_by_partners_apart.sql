-- no-transaction
-- serves: 24
-- The record of operators is read without passing the changes that partners made themselves, however many these are, and
-- retention finds the latter. Programs of older schemas do without the index.
CREATE INDEX CONCURRENTLY operator_actions_apart ON operator_actions ((operator = 'partner'), at);
