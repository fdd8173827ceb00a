-- no-transaction
-- serves: 18
-- The timeline of an order reads the actions on it and on its parts by their ids, the second word of `target`, however many
-- others were recorded since the order. Programs of older schemas do without the index. An entry of an index has a bounded
-- length, and a target that names a file may be longer, so only its first 100 characters count; ids are shorter.
CREATE INDEX CONCURRENTLY operator_actions_target ON operator_actions (left(split_part(target, ' ', 2), 100));
