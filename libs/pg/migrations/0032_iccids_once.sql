-- no-transaction
-- serves: 18
-- An ICCID is unique over all providers, too. If this index cannot be built, two providers have sent one ICCID: the error
-- names it, and `esimctl find` shows both orders. One of the two eSIMs is not what its partner was told; settle that with the
-- providers, and set the wrong ICCID to NULL.
CREATE UNIQUE INDEX CONCURRENTLY esims_iccid ON esims (iccid) WHERE iccid IS NOT NULL;
