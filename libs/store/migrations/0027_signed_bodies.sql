-- serves: 14
-- Every request of this partner must sign its query and its body; others are denied.
ALTER TABLE partners ADD COLUMN signed_body_required boolean NOT NULL DEFAULT false;
