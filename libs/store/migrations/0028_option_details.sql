-- serves: 14
-- What the operator tells partners about an option, beside its name: a JSON object, shown as it is.
ALTER TABLE options ADD COLUMN details jsonb NOT NULL DEFAULT '{}';
