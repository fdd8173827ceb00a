-- serves: 14
-- The operator's description of an option for partners, beside its name.
ALTER TABLE options ADD COLUMN details jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(details) = 'object');
