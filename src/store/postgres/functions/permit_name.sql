-- The name of a permit. (The server puts this into the statement that calls it.)
CREATE OR REPLACE FUNCTION rowlock_permit_name(of_name bytea, of_grant uuid) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT of_name || decode('00', 'hex') || replace(of_grant::text, '-', '')::bytea
$$;
