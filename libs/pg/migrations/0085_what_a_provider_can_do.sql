-- What the provider does for delivered eSIMs, as its adapter says. NULL: no provisioner has said it yet.
ALTER TABLE providers ADD COLUMN shows_usage boolean, ADD COLUMN takes_back boolean;
