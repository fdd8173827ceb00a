-- serves: 55
-- A cell divides (docs/decisions/0036-a-cell-divides.md).

ALTER TABLE system
    -- The name of the cell to which this database belongs; null in a system of one cell. A stage with the setting CELL
    -- works only if it is the same, so that none works on a copy of a cell before the copy is a cell of its own.
    ADD COLUMN cell text,
    -- The division that is under way; null while there is none. It has the names of both cells (`from`, `to`), the
    -- partners that leave, the timeline of the server, and from the fence on the positions of the walks. Only
    -- `esimctl cell divide` and `cell activate` write it, as the owner of the tables.
    ADD COLUMN cut jsonb,
    ADD CONSTRAINT system_cell_bounds CHECK (octet_length(cell) <= 100000 AND octet_length(cut::text) <= 10000000) NOT VALID;
