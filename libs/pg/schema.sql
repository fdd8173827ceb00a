-- The schema as the migrations leave it, to read. It is written by a test and never executed:
-- UPDATE_SCHEMA=1 tests/run test -- -p store snapshot
-- The comments of tables and columns are in libs/pg/migrations.

TABLE account_entries
    partner_id uuid NOT NULL
    currency text NOT NULL
    number bigint NOT NULL
    kind text NOT NULL
    amount bigint NOT NULL
    balance bigint NOT NULL
    released bigint NOT NULL DEFAULT 0
    topup_id text COLLATE "C"
    extension_id uuid
    reference text
    reason text
    made_by text NOT NULL
    at timestamp with time zone NOT NULL
    provider text
    option_id uuid
    cost bigint
    cost_currency text
    CONSTRAINT account_entries_account FOREIGN KEY (partner_id, currency) REFERENCES accounts(partner_id, currency)
    CONSTRAINT account_entries_amounts CHECK (
CASE kind
    WHEN 'charge'::text THEN ((amount <= 0) AND (released = (- amount)))
    WHEN 'release'::text THEN ((amount = 0) AND (released >= 0))
    WHEN 'late_charge'::text THEN ((amount <= 0) AND (released = 0))
    WHEN 'refund'::text THEN ((amount >= 0) AND (released = 0))
    WHEN 'deposit'::text THEN ((amount > 0) AND (released = 0))
    ELSE ((amount <> 0) AND (released = 0))
END)
    CONSTRAINT account_entries_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(currency), octet_length(kind), octet_length(topup_id), octet_length(reference), octet_length(reason), octet_length(made_by), octet_length(provider), octet_length(cost_currency)) <= 100000))) NOT VALID
    CONSTRAINT account_entries_cost CHECK ((cost >= 0)) NOT VALID
    CONSTRAINT account_entries_kind CHECK ((kind = ANY (ARRAY['charge'::text, 'release'::text, 'late_charge'::text, 'refund'::text, 'deposit'::text, 'adjustment'::text])))
    CONSTRAINT account_entries_pkey PRIMARY KEY (partner_id, currency, number)
    CONSTRAINT account_entries_subject CHECK ((((topup_id IS NOT NULL) = (kind = ANY (ARRAY['charge'::text, 'release'::text, 'late_charge'::text, 'refund'::text]))) AND ((reference IS NOT NULL) = (kind = ANY (ARRAY['deposit'::text, 'adjustment'::text]))) AND ((extension_id IS NULL) OR (kind = ANY (ARRAY['charge'::text, 'release'::text, 'late_charge'::text])))))
    CREATE INDEX account_entries_at ON public.account_entries USING btree (partner_id, currency, at, number)
    CREATE UNIQUE INDEX account_entries_extension ON public.account_entries USING btree (extension_id, (
CASE kind
    WHEN 'release'::text THEN 'charge'::text
    ELSE kind
END)) WHERE (extension_id IS NOT NULL)
    CREATE UNIQUE INDEX account_entries_reference ON public.account_entries USING btree (partner_id, currency, reference) WHERE (reference IS NOT NULL)
    CREATE UNIQUE INDEX account_entries_unit ON public.account_entries USING btree (topup_id, (
CASE kind
    WHEN 'release'::text THEN 'charge'::text
    ELSE kind
END)) WHERE ((topup_id IS NOT NULL) AND (extension_id IS NULL))
    CREATE TRIGGER account_entry_stays BEFORE DELETE OR UPDATE OR TRUNCATE ON public.account_entries FOR EACH STATEMENT EXECUTE FUNCTION account_entry_stays()
    CREATE TRIGGER entry_costed BEFORE INSERT ON public.account_entries FOR EACH ROW WHEN ((new.kind = ANY (ARRAY['charge'::text, 'late_charge'::text, 'refund'::text]))) EXECUTE FUNCTION entry_costed()
    POLICY all_rows USING true WITH CHECK true

TABLE accounts
    partner_id uuid NOT NULL
    currency text NOT NULL
    posted bigint NOT NULL DEFAULT 0
    held bigint NOT NULL DEFAULT 0
    credit_limit bigint DEFAULT 0
    last_entry bigint NOT NULL DEFAULT 0
    last_entry_at timestamp with time zone NOT NULL DEFAULT now()
    opened_at timestamp with time zone NOT NULL DEFAULT now()
    warn_below bigint
    told_below bigint
    CONSTRAINT accounts_bounds CHECK (((LEAST(opened_at, last_entry_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(opened_at, last_entry_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (octet_length(currency) <= 100000)))
    CONSTRAINT accounts_credit_limit CHECK ((credit_limit >= 0))
    CONSTRAINT accounts_held CHECK ((held >= 0))
    CONSTRAINT accounts_partner_id_fkey FOREIGN KEY (partner_id) REFERENCES partners(partner_id)
    CONSTRAINT accounts_pkey PRIMARY KEY (partner_id, currency)
    CONSTRAINT accounts_warn_below CHECK (((warn_below >= 0) AND (warn_below <= '1000000000000'::bigint))) NOT VALID
    POLICY all_rows USING true WITH CHECK true
    WITH (fillfactor=50)

TABLE archived_orders
    order_id uuid NOT NULL
    partner_id uuid NOT NULL
    external_order_id text NOT NULL
    refused boolean NOT NULL
    archive integer NOT NULL
    archived_at timestamp with time zone NOT NULL DEFAULT now()
    CONSTRAINT archived_orders_bounds CHECK ((((archived_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (archived_at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (octet_length(external_order_id) <= 100000)))
    CONSTRAINT archived_orders_pkey PRIMARY KEY (order_id)
    CREATE INDEX archived_orders_at ON public.archived_orders USING btree (archived_at)
    CREATE INDEX archived_orders_external ON public.archived_orders USING btree (external_order_id, partner_id)
    POLICY all_rows USING true WITH CHECK true

TABLE archives
    archive integer NOT NULL
    file text NOT NULL
    began_at timestamp with time zone NOT NULL DEFAULT now()
    completed_at timestamp with time zone
    first_order uuid NOT NULL
    last_order uuid NOT NULL
    orders bigint NOT NULL DEFAULT 0
    partners jsonb NOT NULL DEFAULT '{}'::jsonb
    sha256 text
    CONSTRAINT archives_bounds CHECK (((LEAST(began_at, completed_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(began_at, completed_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(file), octet_length(sha256)) <= 100000) AND (pg_column_size(partners) <= 10000000)))
    CONSTRAINT archives_pkey PRIMARY KEY (archive)
    POLICY all_rows USING true WITH CHECK true

TABLE commit_losses
    timeline bigint NOT NULL
    told text NOT NULL
    at timestamp with time zone NOT NULL DEFAULT now()
    CONSTRAINT commit_losses_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (octet_length(told) <= 100000)))
    CONSTRAINT commit_losses_pkey PRIMARY KEY (timeline)
    POLICY all_rows USING true WITH CHECK true

TABLE deliveries
    delivery_id uuid NOT NULL
    partner_id uuid NOT NULL
    kind text NOT NULL DEFAULT 'topup.ready'::text
    topup_id text COLLATE "C"
    order_id uuid
    credential text
    ends_at timestamp with time zone
    state text NOT NULL DEFAULT 'pending'::text
    attempt integer NOT NULL DEFAULT 0
    schedule_start integer NOT NULL DEFAULT 0
    attempted_at timestamp with time zone
    duration_ms integer
    status integer
    error text
    delivered_at timestamp with time zone
    created_at timestamp with time zone NOT NULL DEFAULT now()
    endpoint_id uuid
    notice jsonb
    option_id uuid
    external_order_id text
    traceparent text
    ordered_at timestamp with time zone
    terms text
    CONSTRAINT deliveries_bounds CHECK (((LEAST(ends_at, attempted_at, delivered_at, created_at, ordered_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(ends_at, attempted_at, delivered_at, created_at, ordered_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(kind), octet_length(topup_id), octet_length(credential), octet_length(state), octet_length(error), pg_column_size(notice), octet_length(external_order_id), octet_length(traceparent), octet_length(terms)) <= 100000))) NOT VALID
    CONSTRAINT deliveries_pkey PRIMARY KEY (delivery_id)
    CREATE INDEX deliveries_created ON public.deliveries USING btree (created_at)
    CREATE INDEX deliveries_events ON public.deliveries USING btree (partner_id, created_at) WHERE (kind <> 'topup.ready'::text)
    CREATE INDEX deliveries_partner ON public.deliveries USING btree (partner_id, created_at)
    POLICY all_rows USING true WITH CHECK true
    WITH (fillfactor=70)

TABLE delivery_attempts
    delivery_id uuid NOT NULL
    attempt integer NOT NULL
    at timestamp with time zone NOT NULL
    duration_ms integer NOT NULL
    status integer
    class text NOT NULL
    response_start bytea
    detail text
    CONSTRAINT delivery_attempts_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(class), octet_length(response_start), octet_length(detail)) <= 100000)))
    CONSTRAINT delivery_attempts_pkey PRIMARY KEY (delivery_id, attempt, at)
    CREATE INDEX delivery_attempts_at ON public.delivery_attempts USING btree (at)
    POLICY all_rows USING true WITH CHECK true

TABLE ended_keys
    access_key text NOT NULL
    partner_id uuid NOT NULL
    name text
    ended_at timestamp with time zone NOT NULL
    used_since timestamp with time zone
    used_at timestamp with time zone
    CONSTRAINT ended_keys_bounds CHECK (((LEAST(ended_at, used_since, used_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(ended_at, used_since, used_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(access_key), octet_length(name)) <= 100000)))
    CONSTRAINT ended_keys_partner_id_fkey FOREIGN KEY (partner_id) REFERENCES partners(partner_id)
    CONSTRAINT ended_keys_pkey PRIMARY KEY (access_key)
    CREATE INDEX ended_keys_partner ON public.ended_keys USING btree (partner_id)
    POLICY all_rows USING true WITH CHECK true

TABLE esim_requests
    topup_id text COLLATE "C" NOT NULL
    partner_id uuid NOT NULL
    provider text NOT NULL
    usage_asked_at timestamp with time zone
    installed boolean
    data_used bigint
    data_total bigint
    ends_at timestamp with time zone
    read_at timestamp with time zone
    as_of timestamp with time zone
    usage_failure text
    usage_failed_at timestamp with time zone
    give_back text
    give_back_asked_at timestamp with time zone
    attempt integer NOT NULL DEFAULT 0
    attempted_at timestamp with time zone
    not_returned_at timestamp with time zone
    reason text
    message text
    ended_at timestamp with time zone
    reported_at timestamp with time zone
    reports integer NOT NULL DEFAULT 0
    reached text[] NOT NULL DEFAULT '{}'::text[]
    poll_at timestamp with time zone
    polled_at timestamp with time zone
    plan integer NOT NULL DEFAULT 1
    most_data bigint
    latest_end timestamp with time zone
    offers_asked_at timestamp with time zone
    offers jsonb
    offers_at timestamp with time zone
    downloaded_at timestamp with time zone
    suspend boolean
    suspension text
    suspension_asked_at timestamp with time zone
    suspension_attempt integer NOT NULL DEFAULT 0
    suspension_attempted_at timestamp with time zone
    suspension_not_done_at timestamp with time zone
    suspension_reason text
    suspension_message text
    suspension_ended_at timestamp with time zone
    give_back_cause text
    claim text
    CONSTRAINT esim_requests_bounds CHECK (((LEAST(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at, not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end, downloaded_at, suspension_asked_at, suspension_attempted_at, suspension_not_done_at, suspension_ended_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(usage_asked_at, ends_at, read_at, as_of, usage_failed_at, reported_at, give_back_asked_at, attempted_at, not_returned_at, ended_at, poll_at, polled_at, offers_asked_at, offers_at, latest_end, downloaded_at, suspension_asked_at, suspension_attempted_at, suspension_not_done_at, suspension_ended_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(topup_id), octet_length(provider), octet_length(usage_failure), octet_length(give_back), octet_length(reason), octet_length(message), pg_column_size(reached), pg_column_size(offers), octet_length(suspension), octet_length(suspension_reason), octet_length(suspension_message), octet_length(give_back_cause), octet_length(claim)) <= 100000) AND ((plan >= 1) AND (plan <= 1000000000)))) NOT VALID
    CONSTRAINT esim_requests_pkey PRIMARY KEY (topup_id)
    CREATE INDEX esim_requests_parked ON public.esim_requests USING btree (provider, ended_at) WHERE (give_back = 'parked'::text)
    CREATE INDEX esim_requests_polls ON public.esim_requests USING btree (provider, poll_at) WHERE (poll_at IS NOT NULL)
    POLICY all_rows USING true WITH CHECK true

TABLE esims
    topup_id text COLLATE "C" NOT NULL
    provider text NOT NULL
    provider_unit_id text NOT NULL
    iccid text
    profile bytea
    ready_at timestamp with time zone
    delivery_id uuid
    erased_at timestamp with time zone
    returned_at timestamp with time zone
    code_digest bytea
    install_page integer
    CONSTRAINT esims_bounds CHECK (((LEAST(ready_at, erased_at, returned_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(ready_at, erased_at, returned_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(topup_id), octet_length(provider), octet_length(provider_unit_id), octet_length(iccid), octet_length(profile), octet_length(code_digest)) <= 100000)))
    CONSTRAINT esims_pkey PRIMARY KEY (topup_id)
    CREATE INDEX esims_iccid ON public.esims USING btree (iccid) WHERE (iccid IS NOT NULL)
    CREATE UNIQUE INDEX esims_code_key ON public.esims USING btree (code_digest) WHERE (code_digest IS NOT NULL)
    CREATE UNIQUE INDEX esims_provider_unit_key ON public.esims USING btree (provider, provider_unit_id)
    CREATE TRIGGER esim_return_accounted AFTER UPDATE OF returned_at ON public.esims FOR EACH ROW WHEN (((new.returned_at IS NOT NULL) AND (old.returned_at IS NULL))) EXECUTE FUNCTION unit_accounted()
    CREATE TRIGGER esim_returned AFTER UPDATE OF returned_at ON public.esims FOR EACH ROW WHEN (((new.returned_at IS NOT NULL) AND (old.returned_at IS NULL))) EXECUTE FUNCTION esim_returned()
    CREATE TRIGGER topup_return_noted AFTER UPDATE OF returned_at ON public.esims FOR EACH ROW WHEN (((new.returned_at IS NOT NULL) AND (old.returned_at IS NULL))) EXECUTE FUNCTION topup_return_noted()
    POLICY all_rows USING true WITH CHECK true
    WITH (fillfactor=70)

TABLE extensions
    extension_id uuid NOT NULL
    partner_id uuid NOT NULL
    topup_id text COLLATE "C" NOT NULL
    provider text NOT NULL
    external_id text NOT NULL
    option_id uuid NOT NULL
    provider_option_id text NOT NULL
    state text NOT NULL DEFAULT 'asked'::text
    asked_at timestamp with time zone NOT NULL DEFAULT now()
    attempt integer NOT NULL DEFAULT 0
    attempted_at timestamp with time zone
    baseline jsonb
    not_added_at timestamp with time zone
    reference text
    has_new_profile boolean NOT NULL DEFAULT false
    reason text
    message text
    ended_at timestamp with time zone
    price bigint
    currency text
    CONSTRAINT extensions_bounds CHECK (((LEAST(asked_at, attempted_at, not_added_at, ended_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(asked_at, attempted_at, not_added_at, ended_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(topup_id), octet_length(provider), octet_length(external_id), octet_length(provider_option_id), octet_length(state), pg_column_size(baseline), octet_length(reference), octet_length(reason), octet_length(message), octet_length(currency)) <= 100000))) NOT VALID
    CONSTRAINT extensions_pkey PRIMARY KEY (extension_id)
    CREATE INDEX extensions_parked ON public.extensions USING btree (provider, ended_at) WHERE (state = 'parked'::text)
    CREATE INDEX extensions_topup ON public.extensions USING btree (topup_id, asked_at)
    CREATE UNIQUE INDEX extensions_external_id_key ON public.extensions USING btree (partner_id, external_id)
    CREATE UNIQUE INDEX extensions_open ON public.extensions USING btree (topup_id) WHERE (state = ANY (ARRAY['asked'::text, 'sending'::text, 'parked'::text]))
    CREATE TRIGGER deliver_new_profile AFTER UPDATE OF has_new_profile ON public.extensions FOR EACH ROW WHEN ((new.has_new_profile AND (NOT old.has_new_profile))) EXECUTE FUNCTION deliver_new_profile()
    CREATE TRIGGER extension_accounted AFTER UPDATE OF state ON public.extensions FOR EACH ROW WHEN (((new.state = ANY (ARRAY['added'::text, 'refused'::text])) AND ((old.state <> 'added'::text) AND (old.state <> new.state)) AND (new.price IS NOT NULL))) EXECUTE FUNCTION extension_accounted()
    CREATE TRIGGER extension_ended AFTER UPDATE OF state ON public.extensions FOR EACH ROW WHEN (((new.state = ANY (ARRAY['added'::text, 'refused'::text])) AND (old.state <> new.state))) EXECUTE FUNCTION extension_ended()
    CREATE TRIGGER topup_extension_noted AFTER UPDATE OF state ON public.extensions FOR EACH ROW WHEN (((new.state = 'added'::text) AND (old.state <> 'added'::text))) EXECUTE FUNCTION topup_extension_noted()
    POLICY all_rows USING true WITH CHECK true

TABLE further_deliveries
    topup_id text COLLATE "C" NOT NULL
    delivery_id uuid NOT NULL
    CONSTRAINT further_deliveries_bounds CHECK ((octet_length(topup_id) <= 100000))
    CONSTRAINT further_deliveries_pkey PRIMARY KEY (topup_id, delivery_id)
    CREATE CONSTRAINT TRIGGER further_delivery_of_its_topup AFTER INSERT ON public.further_deliveries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION further_delivery_of_its_topup()
    POLICY all_rows USING true WITH CHECK true

TABLE held
    id uuid NOT NULL
    state text NOT NULL
    provider text NOT NULL
    partner_id uuid NOT NULL
    at timestamp with time zone NOT NULL DEFAULT now()
    lane text NOT NULL DEFAULT ''::text
    CONSTRAINT held_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(state), octet_length(provider), octet_length(lane)) <= 100000)))
    CONSTRAINT held_pkey PRIMARY KEY (id)
    CREATE INDEX held_partner ON public.held USING btree (partner_id, state, at)
    CREATE INDEX held_state ON public.held USING btree (state, provider, at)
    CREATE TRIGGER placement_held AFTER INSERT ON public.held FOR EACH ROW WHEN ((new.state = 'parked'::text)) EXECUTE FUNCTION placement_held()
    POLICY held_of_stage USING 
CASE CURRENT_USER
    WHEN 'esim_provisioner'::name THEN (state = 'parked'::text)
    WHEN 'esim_notifier'::name THEN (state <> 'parked'::text)
    WHEN 'esim_ingress'::name THEN (state <> 'parked'::text)
    ELSE true
END
    POLICY held_readable USING ((CURRENT_USER <> 'esim_provisioner'::name) OR (state = 'parked'::text))

TABLE history
    history_id uuid NOT NULL DEFAULT gen_random_uuid()
    at timestamp with time zone NOT NULL DEFAULT now()
    order_id uuid
    placement_id uuid
    topup_id text COLLATE "C"
    provider text
    endpoint_id uuid
    kind text NOT NULL
    attempt integer
    reason text
    detail text
    before jsonb
    after jsonb
    CONSTRAINT history_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(topup_id), octet_length(provider), octet_length(kind), octet_length(reason), octet_length(detail), pg_column_size(before), pg_column_size(after)) <= 100000)))
    CONSTRAINT history_pkey PRIMARY KEY (history_id)
    CREATE INDEX history_at ON public.history USING btree (at) WHERE (order_id IS NULL)
    CREATE INDEX history_endpoint ON public.history USING btree (endpoint_id, at) WHERE (endpoint_id IS NOT NULL)
    CREATE INDEX history_order ON public.history USING btree (order_id, at) WHERE (order_id IS NOT NULL)
    CREATE INDEX history_provider ON public.history USING btree (provider, at) WHERE ((order_id IS NULL) AND (provider IS NOT NULL))
    POLICY history_ends USING true
    POLICY history_erased USING true
    POLICY history_of_role WITH CHECK ((CURRENT_USER <> 'esim_provisioner'::name) OR (kind <> 'resolved'::text))
    POLICY history_readable USING true

TABLE minutely
    span text NOT NULL
    at timestamp with time zone NOT NULL
    measure text NOT NULL
    subject text NOT NULL
    instance uuid NOT NULL
    n bigint NOT NULL
    failed bigint NOT NULL
    histogram bigint[] NOT NULL
    CONSTRAINT minutely_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(span), octet_length(measure), octet_length(subject), pg_column_size(histogram)) <= 100000) AND (array_ndims(histogram) = 1) AND (array_position(histogram, NULL::bigint) IS NULL)))
    CONSTRAINT minutely_pkey PRIMARY KEY (span, at, measure, subject, instance)
    POLICY all_rows USING true WITH CHECK true

TABLE operator_actions
    action_id uuid NOT NULL
    at timestamp with time zone NOT NULL DEFAULT now()
    operator text NOT NULL
    database_role text NOT NULL DEFAULT SESSION_USER
    command text NOT NULL
    target text NOT NULL
    affected bigint NOT NULL
    reason text NOT NULL
    via text
    source text
    before jsonb
    after jsonb
    CONSTRAINT operator_actions_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(operator), octet_length(database_role), octet_length(command), octet_length(target), octet_length(reason), octet_length(via), octet_length(source), pg_column_size(before), pg_column_size(after)) <= 100000)))
    CONSTRAINT operator_actions_pkey PRIMARY KEY (action_id)
    CREATE INDEX operator_actions_apart ON public.operator_actions USING btree (((operator = 'partner'::text)), at)
    CREATE INDEX operator_actions_at ON public.operator_actions USING btree (at)
    CREATE INDEX operator_actions_target ON public.operator_actions USING btree ("left"(split_part(target, ' '::text, 2), 100))
    POLICY actions_end USING true
    POLICY actions_of_role WITH CHECK 
CASE CURRENT_USER
    WHEN 'esim_ingress'::name THEN ((operator = 'partner'::text) AND (via = 'api'::text))
    WHEN 'esim_console'::name THEN ((operator <> 'partner'::text) AND (via = 'console'::text) AND acts_at_the_console(operator))
    WHEN 'esim_operator'::name THEN ((operator <> 'partner'::text) AND (COALESCE(via, 'esimctl'::text) = 'esimctl'::text))
    ELSE true
END
    POLICY actions_readable USING true

TABLE operator_sessions
    token_digest bytea NOT NULL
    operator_id uuid NOT NULL
    source text NOT NULL
    created_at timestamp with time zone NOT NULL DEFAULT now()
    used_at timestamp with time zone NOT NULL DEFAULT now()
    ends_at timestamp with time zone NOT NULL
    issuer text
    name text
    role text
    CONSTRAINT operator_sessions_bounds CHECK (((LEAST(created_at, used_at, ends_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(created_at, used_at, ends_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(source), octet_length(issuer), octet_length(name), octet_length(role), octet_length(token_digest)) <= 100000)))
    CONSTRAINT operator_sessions_pkey PRIMARY KEY (token_digest)
    CREATE INDEX operator_sessions_operator ON public.operator_sessions USING btree (operator_id)
    POLICY all_rows USING true WITH CHECK true

TABLE operator_sign_ins
    subject text NOT NULL
    attempts integer NOT NULL
    until timestamp with time zone NOT NULL
    CONSTRAINT operator_sign_ins_bounds CHECK ((((until >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (until <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (octet_length(subject) <= 100000)))
    CONSTRAINT operator_sign_ins_pkey PRIMARY KEY (subject)
    POLICY all_rows USING true WITH CHECK true

TABLE operators
    operator_id uuid NOT NULL
    name text NOT NULL
    role text NOT NULL
    password text
    setup_digest bytea
    setup_until timestamp with time zone
    disabled_at timestamp with time zone
    signed_in_at timestamp with time zone
    created_at timestamp with time zone NOT NULL DEFAULT now()
    CONSTRAINT operators_bounds CHECK (((LEAST(setup_until, disabled_at, signed_in_at, created_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(setup_until, disabled_at, signed_in_at, created_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(name), octet_length(role), octet_length(password), octet_length(setup_digest)) <= 100000)))
    CONSTRAINT operators_name_key UNIQUE (name)
    CONSTRAINT operators_pkey PRIMARY KEY (operator_id)
    POLICY all_rows USING true WITH CHECK true

TABLE options
    option_id uuid NOT NULL
    name text NOT NULL
    provider text NOT NULL
    provider_option_id text NOT NULL
    environment text NOT NULL
    enabled boolean NOT NULL DEFAULT true
    details jsonb NOT NULL DEFAULT '{}'::jsonb
    version bigint NOT NULL
    alternatives jsonb NOT NULL DEFAULT '[]'::jsonb
    countries text[]
    data_mb integer
    unlimited boolean
    days integer
    cost bigint
    cost_currency text
    told jsonb
    facts jsonb
    updated_at timestamp with time zone DEFAULT now()
    networks text[]
    CONSTRAINT options_bounds CHECK ((((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(name), octet_length(provider), octet_length(provider_option_id), octet_length(environment), octet_length(cost_currency), pg_column_size(details), pg_column_size(alternatives), pg_column_size(countries), pg_column_size(told), pg_column_size(facts), pg_column_size(networks)) <= 100000))) NOT VALID
    CONSTRAINT options_details CHECK ((jsonb_typeof(details) = 'object'::text))
    CONSTRAINT options_environment_check CHECK ((environment = ANY (ARRAY['sandbox'::text, 'live'::text])))
    CONSTRAINT options_pkey PRIMARY KEY (option_id)
    CREATE INDEX options_version ON public.options USING btree (version)
    CREATE CONSTRAINT TRIGGER option_changed AFTER INSERT OR UPDATE ON public.options DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION configuration_changed()
    CREATE TRIGGER option_updated BEFORE INSERT OR UPDATE ON public.options FOR EACH ROW EXECUTE FUNCTION option_updated()
    CREATE TRIGGER options_version BEFORE INSERT OR UPDATE ON public.options FOR EACH ROW EXECUTE FUNCTION next_configuration_version()
    POLICY all_rows USING true WITH CHECK true

TABLE orders
    order_id uuid NOT NULL
    partner_id uuid NOT NULL
    external_order_id text NOT NULL
    refused_at timestamp with time zone
    answer_by timestamp with time zone NOT NULL
    answering uuid
    traceparent text
    cancelled_at timestamp with time zone
    erased_at timestamp with time zone
    created_at timestamp with time zone NOT NULL DEFAULT now()
    metadata text
    CONSTRAINT orders_bounds CHECK (((LEAST(refused_at, answer_by, cancelled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(refused_at, answer_by, cancelled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(external_order_id), octet_length(traceparent), octet_length(metadata)) <= 100000))) NOT VALID
    CONSTRAINT orders_external_order_id_key UNIQUE NULLS NOT DISTINCT (external_order_id, partner_id, refused_at)
    CONSTRAINT orders_pkey PRIMARY KEY (order_id)
    CREATE INDEX orders_partner ON public.orders USING btree (partner_id, order_id)
    CREATE TRIGGER order_cancelled AFTER UPDATE OF cancelled_at ON public.orders FOR EACH ROW WHEN (((new.cancelled_at IS NOT NULL) AND (old.cancelled_at IS NULL))) EXECUTE FUNCTION order_cancelled()
    POLICY all_rows USING true WITH CHECK true

TABLE partner_endpoints
    endpoint_id uuid NOT NULL
    partner_id uuid NOT NULL
    nth integer NOT NULL
    lane text NOT NULL GENERATED ALWAYS AS (
CASE
    WHEN (nth = 0) THEN ''::text
    ELSE (endpoint_id)::text
END) STORED
    purpose text NOT NULL DEFAULT 'webhooks'::text
    url text
    host text GENERATED ALWAYS AS (lower("substring"(url, '^[^:/?#]+://(?:[^/?#@]*@)?(\[[^]]*\]|[^/:?#]+)'::text))) STORED
    secrets bytea[] NOT NULL DEFAULT '{}'::bytea[]
    secret_ends timestamp with time zone[] NOT NULL DEFAULT '{}'::timestamp with time zone[]
    events text[] NOT NULL DEFAULT '{topup.ready}'::text[]
    headers bytea
    created_at timestamp with time zone NOT NULL DEFAULT now()
    verified_at timestamp with time zone
    code_digest bytea
    code_until timestamp with time zone
    code_tries integer NOT NULL DEFAULT 0
    failures integer NOT NULL DEFAULT 0
    blocks integer NOT NULL DEFAULT 0
    blocked_until timestamp with time zone
    probe uuid
    paused_by_partner boolean NOT NULL DEFAULT false
    moving_since timestamp with time zone
    failing_since timestamp with time zone
    told text
    told_at timestamp with time zone
    exhausted_told_at timestamp with time zone
    unproven_since timestamp with time zone
    polls_up_to timestamp with time zone
    offered jsonb
    offered_by text
    CONSTRAINT partner_endpoints_bounds CHECK (((LEAST(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since, polls_up_to) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(created_at, verified_at, code_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since, polls_up_to) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND ((blocked_until = 'infinity'::timestamp with time zone) OR ((blocked_until >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (blocked_until <= '9999-12-31 00:00:00+00'::timestamp with time zone))) AND ('0001-01-01 00:00:00+00'::timestamp with time zone <= ALL (secret_ends)) AND ('9999-12-31 00:00:00+00'::timestamp with time zone >= ALL (secret_ends)) AND (GREATEST(octet_length(purpose), octet_length(url), octet_length(headers), octet_length(code_digest), octet_length(told), pg_column_size(events), pg_column_size(secrets), pg_column_size(secret_ends)) <= 100000))) NOT VALID
    CONSTRAINT partner_endpoints_first CHECK (((nth = 0) = (endpoint_id = partner_id)))
    CONSTRAINT partner_endpoints_offered CHECK (((pg_column_size(offered) <= 10000000) AND (octet_length(offered_by) <= 100000))) NOT VALID
    CONSTRAINT partner_endpoints_pkey PRIMARY KEY (endpoint_id)
    CONSTRAINT partner_endpoints_secrets CHECK ((cardinality(secrets) = cardinality(secret_ends)))
    CREATE INDEX partner_endpoints_moving ON public.partner_endpoints USING btree (endpoint_id) WHERE (moving_since IS NOT NULL)
    CREATE UNIQUE INDEX partner_endpoints_partner ON public.partner_endpoints USING btree (partner_id, nth)
    CREATE CONSTRAINT TRIGGER endpoint_changed AFTER UPDATE ON public.partner_endpoints DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((((((old.url IS DISTINCT FROM new.url) OR (old.secrets IS DISTINCT FROM new.secrets)) OR (old.secret_ends IS DISTINCT FROM new.secret_ends)) OR (old.headers IS DISTINCT FROM new.headers)) OR (old.purpose IS DISTINCT FROM new.purpose)) OR ((old.blocked_until IS NULL) IS DISTINCT FROM (new.blocked_until IS NULL)))) EXECUTE FUNCTION configuration_changed()
    CREATE CONSTRAINT TRIGGER endpoint_deleted AFTER DELETE ON public.partner_endpoints DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION configuration_changed()
    CREATE TRIGGER channel_moved BEFORE UPDATE OF url ON public.partner_endpoints FOR EACH ROW WHEN (((old.purpose = 'notices'::text) AND (new.url IS DISTINCT FROM old.url))) EXECUTE FUNCTION channel_moved()
    CREATE TRIGGER endpoint_blocked AFTER UPDATE OF blocks ON public.partner_endpoints FOR EACH ROW WHEN (((new.blocks > 0) <> (old.blocks > 0))) EXECUTE FUNCTION endpoint_blocked()
    CREATE TRIGGER endpoint_blocked_at_once AFTER INSERT ON public.partner_endpoints FOR EACH ROW WHEN ((new.blocks > 0)) EXECUTE FUNCTION endpoint_blocked()
    CREATE TRIGGER endpoint_moved AFTER INSERT OR UPDATE OF moving_since ON public.partner_endpoints FOR EACH ROW WHEN ((new.moving_since IS NOT NULL)) EXECUTE FUNCTION endpoint_moved()
    POLICY all_rows USING true WITH CHECK true

TABLE partner_key_uses
    key_id uuid NOT NULL
    last_used_at timestamp with time zone
    day timestamp with time zone
    units bigint NOT NULL DEFAULT 0
    CONSTRAINT partner_key_uses_bounds CHECK ((((last_used_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (last_used_at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND ((day >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (day <= '9999-12-31 00:00:00+00'::timestamp with time zone))))
    CONSTRAINT partner_key_uses_pkey PRIMARY KEY (key_id)
    POLICY all_rows USING true WITH CHECK true

TABLE partner_keys
    key_id uuid NOT NULL
    partner_id uuid NOT NULL
    name text NOT NULL
    access_key text NOT NULL
    secret_key bytea NOT NULL
    rights text[] NOT NULL
    networks text[] NOT NULL DEFAULT '{}'::text[]
    units_per_day integer
    created_at timestamp with time zone NOT NULL DEFAULT now()
    CONSTRAINT partner_keys_access_key_key UNIQUE (access_key)
    CONSTRAINT partner_keys_bounds CHECK ((((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(name), octet_length(access_key), octet_length(secret_key), pg_column_size(rights), pg_column_size(networks)) <= 100000)))
    CONSTRAINT partner_keys_partner_id_fkey FOREIGN KEY (partner_id) REFERENCES partners(partner_id)
    CONSTRAINT partner_keys_pkey PRIMARY KEY (key_id)
    CONSTRAINT partner_keys_units_per_day CHECK ((units_per_day >= 0))
    CREATE INDEX partner_keys_partner ON public.partner_keys USING btree (partner_id)
    CREATE TRIGGER partner_key_changed AFTER INSERT OR DELETE OR UPDATE ON public.partner_keys FOR EACH ROW EXECUTE FUNCTION partner_key_changed()
    CREATE TRIGGER partner_key_ended AFTER DELETE ON public.partner_keys FOR EACH ROW EXECUTE FUNCTION partner_key_ended()
    POLICY all_rows USING true WITH CHECK true

TABLE partners
    partner_id uuid NOT NULL
    name text NOT NULL
    environment text NOT NULL
    access_key text NOT NULL
    secret_key bytea
    old_access_key text
    old_secret_key bytea
    old_keys_until timestamp with time zone
    signed_body_required boolean NOT NULL DEFAULT false
    max_in_flight integer
    requests_per_second integer
    orders_per_second integer
    units_per_second integer
    disabled_at timestamp with time zone
    erased_at timestamp with time zone
    created_at timestamp with time zone NOT NULL DEFAULT now()
    version bigint NOT NULL
    has_further_endpoints boolean NOT NULL DEFAULT false
    price_list text
    shop text
    install_urls boolean NOT NULL DEFAULT false
    CONSTRAINT partners_access_key_key UNIQUE (access_key)
    CONSTRAINT partners_bounds CHECK (((LEAST(old_keys_until, disabled_at, erased_at, created_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(old_keys_until, disabled_at, erased_at, created_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(name), octet_length(environment), octet_length(access_key), octet_length(old_access_key), octet_length(secret_key), octet_length(old_secret_key), octet_length(price_list), octet_length(shop)) <= 100000))) NOT VALID
    CONSTRAINT partners_environment_check CHECK ((environment = ANY (ARRAY['sandbox'::text, 'live'::text])))
    CONSTRAINT partners_limits CHECK ((LEAST(max_in_flight, requests_per_second, orders_per_second, units_per_second) > 0))
    CONSTRAINT partners_old_access_key_key UNIQUE (old_access_key)
    CONSTRAINT partners_pkey PRIMARY KEY (partner_id)
    CONSTRAINT partners_price_list_fkey FOREIGN KEY (price_list) REFERENCES price_lists(price_list) NOT VALID
    CREATE INDEX partners_version ON public.partners USING btree (version)
    CREATE CONSTRAINT TRIGGER partner_changed AFTER INSERT OR UPDATE ON public.partners DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION configuration_changed()
    CREATE TRIGGER partner_access_key_free AFTER INSERT OR UPDATE OF access_key ON public.partners FOR EACH ROW EXECUTE FUNCTION partner_access_key_free()
    CREATE TRIGGER partner_created AFTER INSERT ON public.partners FOR EACH ROW EXECUTE FUNCTION first_endpoint()
    CREATE TRIGGER partner_key_ended AFTER UPDATE OF access_key, old_access_key ON public.partners FOR EACH ROW EXECUTE FUNCTION partner_key_ended()
    CREATE TRIGGER partners_version BEFORE INSERT OR UPDATE ON public.partners FOR EACH ROW EXECUTE FUNCTION next_configuration_version()
    POLICY all_rows USING true WITH CHECK true

TABLE placements
    placement_id uuid NOT NULL
    order_id uuid NOT NULL
    partner_id uuid NOT NULL
    provider text NOT NULL
    lane text NOT NULL
    state text NOT NULL DEFAULT 'accepted'::text
    attempt integer NOT NULL DEFAULT 0
    attempted_at timestamp with time zone
    not_found_at timestamp with time zone
    unknowns integer NOT NULL DEFAULT 0
    placed_at timestamp with time zone
    hinted_at timestamp with time zone
    reason text
    refusal_status text
    refusal_message text
    disputed boolean NOT NULL DEFAULT false
    created_at timestamp with time zone NOT NULL DEFAULT now()
    provider_reference text
    alternatives jsonb
    tried jsonb
    first_claim text
    CONSTRAINT placements_bounds CHECK (((LEAST(attempted_at, not_found_at, placed_at, hinted_at, created_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(attempted_at, not_found_at, placed_at, hinted_at, created_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(provider), octet_length(lane), octet_length(state), octet_length(reason), octet_length(refusal_status), octet_length(refusal_message), octet_length(provider_reference), pg_column_size(alternatives), pg_column_size(tried), octet_length(first_claim)) <= 100000)))
    CONSTRAINT placements_pkey PRIMARY KEY (placement_id)
    CREATE INDEX placements_created ON public.placements USING btree (created_at)
    CREATE INDEX placements_order ON public.placements USING btree (order_id)
    CREATE TRIGGER placement_deleted AFTER DELETE ON public.placements FOR EACH ROW WHEN ((old.provider_reference IS NOT NULL)) EXECUTE FUNCTION note_provider_reference()
    CREATE TRIGGER placement_inserted AFTER INSERT ON public.placements FOR EACH ROW WHEN ((new.provider_reference IS NOT NULL)) EXECUTE FUNCTION note_provider_reference()
    CREATE TRIGGER placement_named AFTER UPDATE OF provider_reference ON public.placements FOR EACH ROW WHEN ((new.provider_reference IS DISTINCT FROM old.provider_reference)) EXECUTE FUNCTION note_provider_reference()
    POLICY all_rows USING true WITH CHECK true
    WITH (fillfactor=60)

TABLE price_lists
    price_list text NOT NULL
    currency text NOT NULL
    version bigint NOT NULL
    CONSTRAINT price_lists_bounds CHECK ((GREATEST(octet_length(price_list), octet_length(currency)) <= 100000))
    CONSTRAINT price_lists_pkey PRIMARY KEY (price_list)
    CREATE CONSTRAINT TRIGGER price_list_changed AFTER INSERT OR UPDATE ON public.price_lists DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION configuration_changed()
    CREATE TRIGGER price_lists_version BEFORE INSERT OR UPDATE ON public.price_lists FOR EACH ROW EXECUTE FUNCTION next_configuration_version()
    POLICY all_rows USING true WITH CHECK true

TABLE prices
    price_list text NOT NULL
    option_id uuid NOT NULL
    valid_from timestamp with time zone NOT NULL DEFAULT now()
    amount bigint
    CONSTRAINT prices_amount CHECK (((amount >= 0) AND (amount <= '1000000000000'::bigint)))
    CONSTRAINT prices_bounds CHECK ((((valid_from >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (valid_from <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (octet_length(price_list) <= 100000)))
    CONSTRAINT prices_pkey PRIMARY KEY (price_list, option_id, valid_from)
    CONSTRAINT prices_price_list_fkey FOREIGN KEY (price_list) REFERENCES price_lists(price_list)
    POLICY all_rows USING true WITH CHECK true

TABLE provider_lanes
    provider text NOT NULL
    lane text NOT NULL
    instance text NOT NULL
    max_in_flight integer NOT NULL
    unsettled integer NOT NULL
    reason text NOT NULL
    since timestamp with time zone NOT NULL
    updated_at timestamp with time zone NOT NULL DEFAULT now()
    CONSTRAINT provider_lanes_bounds CHECK (((LEAST(since, updated_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(since, updated_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(provider), octet_length(lane), octet_length(instance), octet_length(reason)) <= 100000)))
    CONSTRAINT provider_lanes_pkey PRIMARY KEY (provider, lane, instance)
    POLICY all_rows USING true WITH CHECK true

TABLE provider_proofs
    purchase_id uuid NOT NULL
    provider text NOT NULL
    account text NOT NULL
    provider_option_id text NOT NULL
    units integer NOT NULL
    recorded_at timestamp with time zone NOT NULL DEFAULT now()
    reference text
    ended_at timestamp with time zone
    same_again boolean
    same_for_s integer
    proved_at timestamp with time zone
    evidence text
    CONSTRAINT provider_proofs_bounds CHECK (((LEAST(recorded_at, ended_at, proved_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(recorded_at, ended_at, proved_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(provider), octet_length(account), octet_length(provider_option_id), octet_length(reference), octet_length(evidence)) <= 100000) AND ((units >= 1) AND (units <= 1000)) AND ((same_for_s >= 0) AND (same_for_s <= 1000000000))))
    CONSTRAINT provider_proofs_pkey PRIMARY KEY (purchase_id)
    POLICY all_rows USING true WITH CHECK true

TABLE provider_references
    reference text NOT NULL
    placement_id uuid NOT NULL
    CONSTRAINT provider_references_bounds CHECK ((octet_length(reference) <= 100000))
    CONSTRAINT provider_references_pkey PRIMARY KEY (reference, placement_id)
    POLICY all_rows USING true WITH CHECK true

TABLE provider_replicas
    provider text NOT NULL
    instance text NOT NULL
    share double precision NOT NULL
    until timestamp with time zone NOT NULL
    CONSTRAINT provider_replicas_bounds CHECK ((((until >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (until <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(provider), octet_length(instance)) <= 100000) AND ((share >= (0)::double precision) AND (share <= ('1000000000'::numeric)::double precision))))
    CONSTRAINT provider_replicas_pkey PRIMARY KEY (provider, instance)
    POLICY all_rows USING true WITH CHECK true

TABLE providers
    name text NOT NULL
    open_until timestamp with time zone
    reason text
    openings integer NOT NULL DEFAULT 0
    version bigint NOT NULL DEFAULT 1
    changed_at timestamp with time zone NOT NULL DEFAULT now()
    failing_since timestamp with time zone
    denied boolean NOT NULL DEFAULT false
    balance text
    balance_at timestamp with time zone
    shows_usage boolean
    takes_back boolean
    polled_at timestamp with time zone NOT NULL DEFAULT now()
    suspends boolean
    CONSTRAINT providers_bounds CHECK (((LEAST(open_until, changed_at, failing_since, balance_at, polled_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(open_until, changed_at, failing_since, balance_at, polled_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(name), octet_length(reason), octet_length(balance)) <= 100000) AND ((openings >= 0) AND (openings <= 1000000000)) AND ((version >= 0) AND (version <= '9000000000000000000'::bigint)))) NOT VALID
    CONSTRAINT providers_pkey PRIMARY KEY (name)
    POLICY all_rows USING true WITH CHECK true

TABLE pulses
    instance uuid NOT NULL
    stage text NOT NULL
    number bigint NOT NULL
    timeline bigint NOT NULL
    replicated boolean NOT NULL
    at timestamp with time zone NOT NULL
    started_at timestamp with time zone NOT NULL DEFAULT now()
    stopped boolean NOT NULL DEFAULT false
    no_nats_since timestamp with time zone
    clock_ahead double precision
    clock_off_since timestamp with time zone
    nats_refused text
    nats_refused_since timestamp with time zone
    host text
    CONSTRAINT pulses_bounds CHECK (((LEAST(at, started_at, no_nats_since, clock_off_since, nats_refused_since) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(at, started_at, no_nats_since, clock_off_since, nats_refused_since) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND ((nats_refused IS NULL) OR (nats_refused ~ '^((publish|subscribe|ask) [A-Z_]{1,20}(, |$))+$'::text)) AND ((clock_ahead >= ('-1000000000000'::numeric)::double precision) AND (clock_ahead <= ('1000000000000'::numeric)::double precision)) AND ((host IS NULL) OR (host ~ '^[A-Za-z0-9._-]{1,253}$'::text)) AND (octet_length(stage) <= 100000))) NOT VALID
    CONSTRAINT pulses_pkey PRIMARY KEY (instance)
    CREATE INDEX pulses_at ON public.pulses USING btree (at)
    CREATE TRIGGER pulses_deleted AFTER DELETE ON public.pulses FOR EACH STATEMENT EXECUTE FUNCTION forget_losses_of_another_cluster()
    POLICY all_rows USING true WITH CHECK true

TABLE refused_requests
    request_id uuid NOT NULL
    partner_id uuid NOT NULL
    kind text NOT NULL
    at timestamp with time zone NOT NULL
    status integer NOT NULL
    reason text NOT NULL
    errors text NOT NULL
    method text NOT NULL
    path text NOT NULL
    external_order_id text
    unrecorded bigint NOT NULL
    CONSTRAINT refused_requests_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(kind), octet_length(reason), octet_length(errors), octet_length(method), octet_length(path), octet_length(external_order_id)) <= 100000)))
    CONSTRAINT refused_requests_pkey PRIMARY KEY (request_id)
    CREATE INDEX refused_requests_at ON public.refused_requests USING btree (at)
    CREATE INDEX refused_requests_external ON public.refused_requests USING btree (external_order_id) WHERE (external_order_id IS NOT NULL)
    CREATE INDEX refused_requests_partner ON public.refused_requests USING btree (partner_id, kind, request_id)
    POLICY all_rows USING true WITH CHECK true

TABLE resends
    resend_id uuid NOT NULL
    partner_id uuid
    state text
    since timestamp with time zone NOT NULL
    until timestamp with time zone NOT NULL
    matching bigint
    phase text NOT NULL
    after_at timestamp with time zone
    after_id uuid
    resent bigint NOT NULL DEFAULT 0
    created_at timestamp with time zone NOT NULL DEFAULT now()
    ended_at timestamp with time zone
    cancelled_at timestamp with time zone
    batch_id uuid
    delivery_id uuid
    asked_by text NOT NULL DEFAULT 'partner'::text
    via text NOT NULL DEFAULT 'api'::text
    reason text NOT NULL DEFAULT ''::text
    skipped bigint NOT NULL DEFAULT 0
    CONSTRAINT resends_bounds CHECK (((LEAST(since, until, after_at, created_at, ended_at, cancelled_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(since, until, after_at, created_at, ended_at, cancelled_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(state), octet_length(phase), octet_length(asked_by), octet_length(via), octet_length(reason)) <= 100000)))
    CONSTRAINT resends_pkey PRIMARY KEY (resend_id)
    CREATE INDEX resends_batch ON public.resends USING btree (batch_id) WHERE (batch_id IS NOT NULL)
    CREATE INDEX resends_created ON public.resends USING btree (created_at) WHERE ((batch_id IS NULL) AND ((delivery_id IS NULL) OR (via <> 'api'::text)))
    CREATE INDEX resends_partner ON public.resends USING btree (partner_id, created_at)
    CREATE UNIQUE INDEX resends_running ON public.resends USING btree (partner_id) WHERE (ended_at IS NULL)
    CREATE TRIGGER resend_begun AFTER INSERT ON public.resends FOR EACH ROW WHEN (((new.ended_at IS NULL) AND (new.partner_id IS NOT NULL))) EXECUTE FUNCTION resend_begun()
    POLICY resends_end USING true
    POLICY resends_go_on USING true
    POLICY resends_of_role WITH CHECK 
CASE CURRENT_USER
    WHEN 'esim_ingress'::name THEN ((asked_by = 'partner'::text) AND (via = 'api'::text))
    WHEN 'esim_console'::name THEN ((asked_by <> 'partner'::text) AND (via = 'console'::text))
    WHEN 'esim_operator'::name THEN ((asked_by <> 'partner'::text) AND (via = 'esimctl'::text))
    ELSE true
END
    POLICY resends_readable USING true

TABLE system
    singleton boolean NOT NULL DEFAULT true
    version bigint NOT NULL DEFAULT 0
    addresses text[] NOT NULL DEFAULT '{}'::text[]
    told_at timestamp with time zone NOT NULL DEFAULT now()
    CONSTRAINT system_bounds CHECK ((((told_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (told_at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (pg_column_size(addresses) <= 100000)))
    CONSTRAINT system_pkey PRIMARY KEY (singleton)
    CONSTRAINT system_singleton_check CHECK (singleton)
    POLICY all_rows USING true WITH CHECK true

TABLE topup_changes
    partner_id uuid NOT NULL
    at timestamp with time zone NOT NULL
    topup_id text COLLATE "C" NOT NULL
    change text COLLATE "C" NOT NULL
    CONSTRAINT topup_changes_bounds CHECK ((((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone)) AND (GREATEST(octet_length(topup_id), octet_length(change)) <= 100000)))
    CONSTRAINT topup_changes_pkey PRIMARY KEY (partner_id, at, topup_id, change)
    CREATE INDEX topup_changes_topup ON public.topup_changes USING btree (topup_id)
    POLICY all_rows USING true WITH CHECK true

TABLE topups
    topup_id text COLLATE "C" NOT NULL
    placement_id uuid NOT NULL
    position integer NOT NULL
    option_id uuid NOT NULL
    provider_option_id text NOT NULL
    state text NOT NULL DEFAULT 'pending'::text
    reason text
    terms text
    metadata text
    CONSTRAINT topups_bounds CHECK ((GREATEST(octet_length(topup_id), octet_length(provider_option_id), octet_length(state), octet_length(reason), octet_length(terms), octet_length(metadata)) <= 100000)) NOT VALID
    CONSTRAINT topups_topup_id_key PRIMARY KEY (topup_id)
    CREATE INDEX topups_placement ON public.topups USING btree (placement_id)
    CREATE TRIGGER topup_failed AFTER UPDATE OF state ON public.topups FOR EACH ROW WHEN (((new.state = 'failed'::text) AND (old.state <> 'failed'::text))) EXECUTE FUNCTION topup_failed()
    CREATE TRIGGER topup_failure_accounted AFTER UPDATE OF state ON public.topups FOR EACH ROW WHEN (((new.state = 'failed'::text) AND (old.state <> 'failed'::text) AND (new.terms IS NOT NULL))) EXECUTE FUNCTION unit_accounted()
    CREATE TRIGGER topup_failure_noted AFTER UPDATE OF state ON public.topups FOR EACH ROW WHEN (((new.state = 'failed'::text) AND (old.state <> 'failed'::text))) EXECUTE FUNCTION topup_failure_noted()
    POLICY all_rows USING true WITH CHECK true

TABLE walks
    name text NOT NULL
    up_to timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone
    after text NOT NULL DEFAULT ''::text
    days integer
    began_at timestamp with time zone NOT NULL DEFAULT now()
    fence_at timestamp with time zone
    fence_xid xid8
    result jsonb
    CONSTRAINT walks_bounds CHECK ((((up_to = '-infinity'::timestamp with time zone) OR ((up_to >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (up_to <= '9999-12-31 00:00:00+00'::timestamp with time zone))) AND (LEAST(began_at, fence_at) >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(began_at, fence_at) <= '9999-12-31 00:00:00+00'::timestamp with time zone) AND (GREATEST(octet_length(name), octet_length(after), pg_column_size(result)) <= 100000))) NOT VALID
    CONSTRAINT walks_days CHECK (((days >= 1) AND (days <= 36500)))
    CONSTRAINT walks_pkey PRIMARY KEY (name)
    POLICY walks_of_stage USING 
CASE CURRENT_USER
    WHEN 'esim_provisioner'::name THEN (name = 'placements'::text)
    WHEN 'esim_notifier'::name THEN (name <> 'placements'::text)
    ELSE true
END
    POLICY walks_readable USING true

TABLE work
    id uuid NOT NULL
    kind text NOT NULL
    provider text NOT NULL
    lane text NOT NULL
    partner_id uuid NOT NULL
    at timestamp with time zone NOT NULL
    CONSTRAINT work_bounds CHECK ((((at = '-infinity'::timestamp with time zone) OR ((at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (at <= '9999-12-31 00:00:00+00'::timestamp with time zone))) AND (GREATEST(octet_length(kind), octet_length(provider), octet_length(lane)) <= 100000)))
    CONSTRAINT work_pkey PRIMARY KEY (id)
    CREATE INDEX work_at ON public.work USING btree (kind, provider, at)
    CREATE INDEX work_lane ON public.work USING btree (kind, provider, lane, partner_id, at)
    POLICY work_of_stage USING 
CASE CURRENT_USER
    WHEN 'esim_provisioner'::name THEN (kind <> ALL (ARRAY['deliver'::text, 'erase'::text, 'moved'::text, 'resend'::text, 'notices'::text]))
    WHEN 'esim_notifier'::name THEN (kind = ANY (ARRAY['deliver'::text, 'erase'::text, 'moved'::text, 'resend'::text, 'notices'::text]))
    WHEN 'esim_ingress'::name THEN (kind = 'deliver'::text)
    ELSE true
END WITH CHECK 
CASE CURRENT_USER
    WHEN 'esim_provisioner'::name THEN (kind <> ALL (ARRAY['erase'::text, 'moved'::text, 'resend'::text, 'notices'::text]))
    WHEN 'esim_notifier'::name THEN (kind = ANY (ARRAY['deliver'::text, 'erase'::text, 'moved'::text, 'resend'::text, 'notices'::text]))
    WHEN 'esim_ingress'::name THEN (kind = ANY (ARRAY['deliver'::text, 'usage'::text, 'give_back'::text, 'extend'::text, 'suspend'::text]))
    ELSE true
END
    WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=500)

CREATE OR REPLACE FUNCTION public.account_entry_stays()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    RAISE EXCEPTION 'an entry of an account is never changed or deleted; book an adjustment instead'
        USING ERRCODE = 'insufficient_privilege';
END
$function$

CREATE OR REPLACE FUNCTION public.account_for(of_placements uuid[])
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    entries bigint;
    moment timestamptz;
BEGIN
    -- First, so that the next statement sees what whoever held the lock has written.
    PERFORM lock_accounts(of_placements);
    moment := clock_timestamp();
    WITH unit AS (
        SELECT p.partner_id, t.terms::jsonb->'price'->>'currency' AS currency, t.topup_id,
               (t.terms::jsonb->'price'->>'amount')::bigint AS price, e.ready_at IS NOT NULL AS is_ready,
               t.state = 'failed' AS has_failed, e.returned_at IS NOT NULL AS is_returned,
               ARRAY (SELECT n.kind FROM account_entries n WHERE n.topup_id = t.topup_id AND n.extension_id IS NULL) AS kinds
        FROM placements p JOIN topups t ON t.placement_id = p.placement_id LEFT JOIN esims e ON e.topup_id = t.topup_id
        WHERE p.placement_id = ANY (of_placements) AND t.terms IS NOT NULL AND t.terms::jsonb ? 'price'
    ), due AS (
        SELECT unit.*, entry.kind, entry.amount, entry.released, entry.nth
        FROM unit CROSS JOIN LATERAL (VALUES
            (1, 'charge', -price, price, is_ready AND NOT 'charge' = ANY (kinds) AND NOT 'release' = ANY (kinds)),
            (2, 'late_charge', -price, 0, is_ready AND 'release' = ANY (kinds) AND NOT 'late_charge' = ANY (kinds)),
            (3, 'release', 0, price,
             has_failed AND NOT is_ready AND NOT 'charge' = ANY (kinds) AND NOT 'release' = ANY (kinds)),
            (4, 'refund', price, 0, is_ready AND is_returned AND NOT 'refund' = ANY (kinds))
        ) AS entry (nth, kind, amount, released, is_due)
        WHERE entry.is_due
    ), written AS (
        INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, made_by, at)
        SELECT a.partner_id, a.currency, a.last_entry + row_number() OVER entries_of, due.kind, due.amount,
               a.posted + sum(due.amount) OVER entries_of, due.released, due.topup_id, 'system',
               greatest(moment, a.last_entry_at)
        FROM due JOIN accounts a ON a.partner_id = due.partner_id AND a.currency = due.currency
        WINDOW entries_of AS (PARTITION BY a.partner_id, a.currency ORDER BY due.topup_id, due.nth)
        RETURNING partner_id, currency, amount, released
    ), summed AS (
        SELECT w.partner_id, w.currency, sum(w.amount) AS amount, sum(w.released) AS released, count(*) AS entries
        FROM written w GROUP BY w.partner_id, w.currency
    ), updated AS (
        UPDATE accounts a
        SET posted = a.posted + s.amount, held = a.held - s.released, last_entry = a.last_entry + s.entries,
            last_entry_at = greatest(moment, a.last_entry_at)
        FROM summed s WHERE a.partner_id = s.partner_id AND a.currency = s.currency
        RETURNING s.entries
    )
    SELECT coalesce(sum(u.entries), 0) INTO entries FROM updated u;
    RETURN entries;
END
$function$

CREATE OR REPLACE FUNCTION public.acts_at_the_console(asked_name text)
 RETURNS boolean
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
    SELECT EXISTS (SELECT FROM operators WHERE name = asked_name AND disabled_at IS NULL)
           OR EXISTS (SELECT FROM operator_sessions WHERE name = asked_name AND ends_at > now())
$function$

CREATE OR REPLACE FUNCTION public.add_entry(of_partner uuid, in_currency text, as_kind text, of_amount bigint, ends bigint, of_topup text, of_extension uuid, with_reference text, because text, author text)
 RETURNS bigint
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    account accounts;
    moment timestamptz;
BEGIN
    SELECT * INTO account FROM accounts a WHERE a.partner_id = of_partner AND a.currency = in_currency FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    moment := greatest(clock_timestamp(), account.last_entry_at);
    INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, extension_id, reference,
                                 reason, made_by, at)
    VALUES (of_partner, in_currency, account.last_entry + 1, as_kind, of_amount, account.posted + of_amount, ends, of_topup,
            of_extension, with_reference, because, author, moment)
    ON CONFLICT (partner_id, currency, reference) WHERE reference IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE accounts SET posted = posted + of_amount, held = held - ends, last_entry = last_entry + 1, last_entry_at = moment
    WHERE partner_id = of_partner AND currency = in_currency;
    RETURN account.last_entry + 1;
END
$function$

CREATE OR REPLACE FUNCTION public.begin_reading(of_topup text)
 RETURNS TABLE(reached text[], age double precision, plan integer, most_data bigint, latest_end timestamp with time zone)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM FROM topups t JOIN placements p ON p.placement_id = t.placement_id JOIN orders o ON o.order_id = p.order_id
    WHERE t.topup_id = of_topup AND o.erased_at IS NULL
    FOR KEY SHARE OF o;
    IF FOUND THEN
        RETURN QUERY
            SELECT r.reached, extract(epoch FROM now() - e.ready_at)::float8, r.plan,
                   -- A row of before has only its last reading.
                   coalesce(r.most_data, nullif(r.data_total, 0)), coalesce(r.latest_end, r.ends_at)
            FROM esim_requests r JOIN esims e ON e.topup_id = r.topup_id
            WHERE r.topup_id = of_topup AND e.ready_at IS NOT NULL
            FOR UPDATE OF r;
    END IF;
END
$function$

CREATE OR REPLACE FUNCTION public.book_entry(of_partner uuid, in_currency text, as_kind text, of_amount bigint, with_reference text, because text, operator text)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF as_kind NOT IN ('deposit', 'adjustment') THEN
        RAISE EXCEPTION 'only deposits and adjustments are booked by hand' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN add_entry(of_partner, in_currency, as_kind, of_amount, 0, NULL, NULL, with_reference, because, operator);
END
$function$

CREATE OR REPLACE FUNCTION public.channel_moved()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    NEW.verified_at := NULL;
    NEW.code_digest := NULL;
    RETURN NEW;
END
$function$

CREATE OR REPLACE FUNCTION public.commit_without_flush(wanted boolean)
 RETURNS text
 LANGUAGE sql
RETURN CASE WHEN wanted THEN set_config('synchronous_commit'::text, 'off'::text, true) ELSE NULL::text END

CREATE OR REPLACE FUNCTION public.commits_lost(process uuid, acknowledged bigint, new_timeline bigint)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    timeline bigint := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    never CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    why text;
    opened bigint;
BEGIN
    IF new_timeline <> timeline THEN
        RAISE EXCEPTION 'the server is on timeline %, so no loss before timeline % can be known', timeline, new_timeline
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    why := CASE
        WHEN acknowledged IS NOT NULL THEN format(
            'commits were lost: the database has pulse %s of process %s, and pulse %s was acknowledged',
            coalesce((SELECT number FROM pulses WHERE instance = process), 0), process, acknowledged)
        WHEN new_timeline IS NOT NULL THEN format(
            'commits may be lost: the timeline is %s now, and commits did not wait for a standby before', new_timeline)
        ELSE 'commits were lost'
    END || format(' (%s says so)', session_user);
    IF new_timeline IS NOT NULL THEN
        INSERT INTO commit_losses (timeline, told) VALUES (new_timeline, why) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    SELECT count(*) INTO opened FROM providers WHERE open_until IS DISTINCT FROM never;
    UPDATE providers
    SET reason = CASE WHEN open_until = never THEN reason
                      ELSE why || coalesce(' (open before: ' || left(reason, 1000) || ')', '') END,
        open_until = never, version = (version + 1000000) % 9000000000000000000, changed_at = now(),
        failing_since = CASE WHEN open_until IS NULL THEN now() ELSE coalesce(failing_since, now()) END;
    UPDATE system SET version = version + 1000000;
    PERFORM setval('configuration_versions', nextval('configuration_versions') + 1000000);
    IF opened > 0 THEN
        INSERT INTO operator_actions (action_id, operator, database_role, command, target, affected, reason)
        VALUES (gen_random_uuid(), session_user, session_user, 'commit fence', 'all providers', opened, why);
    END IF;
    RETURN true;
END
$function$

CREATE OR REPLACE FUNCTION public.configuration_changed()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    -- Once is enough for a transaction that changes a thousand options. The setting ends with the transaction.
    IF current_setting('esim.version_raised', true) IS DISTINCT FROM 'yes' THEN
        UPDATE system SET version = version + 1;
        PERFORM set_config('esim.version_raised', 'yes', true);
    END IF;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.cost_of(option uuid, at_provider text, product text)
 RETURNS TABLE(cost bigint, currency text)
 LANGUAGE sql
 STABLE
AS $function$
    SELECT known.cost, o.cost_currency
    FROM options o
    CROSS JOIN LATERAL (
        SELECT CASE WHEN o.provider_option_id = product THEN o.cost
                    ELSE (substring(product FROM '@([0-9]{1,12}(?:[.][0-9]{1,4})?)$')::numeric * 10000)::bigint END AS cost
    ) known
    WHERE o.option_id = option AND o.provider = at_provider AND o.cost_currency IS NOT NULL AND known.cost IS NOT NULL
$function$

CREATE OR REPLACE FUNCTION public.deliver_new_profile()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    WITH named AS (
        SELECT e.delivery_id AS id FROM esims e WHERE e.topup_id = NEW.topup_id
        UNION
        SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = NEW.topup_id
    ), chosen AS MATERIALIZED (
        SELECT d.* FROM deliveries d
        WHERE d.delivery_id = ANY (ARRAY (SELECT id FROM named)) AND d.kind = 'topup.ready'
        ORDER BY d.delivery_id FOR UPDATE
    ), kept AS (
        INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class)
        SELECT delivery_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
        FROM chosen WHERE state = 'delivered' AND attempted_at IS NOT NULL
        ON CONFLICT DO NOTHING
    ), due AS (
        INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
        -- An attempt that may be in flight ends first, so that it does not overtake the new profile.
        SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id,
               CASE WHEN state = 'pending' THEN now() + interval '30 seconds' ELSE now() END
        FROM chosen
        WHERE state <> 'no_endpoint'
        ON CONFLICT (id) DO UPDATE SET at = excluded.at
    ), released AS (
        DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM chosen WHERE state <> 'no_endpoint'))
    )
    UPDATE deliveries d SET state = 'pending', attempt = d.attempt + 1, schedule_start = d.attempt + 1, delivered_at = NULL
    FROM chosen WHERE d.delivery_id = chosen.delivery_id AND chosen.state <> 'no_endpoint';
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.deliver_to(of_partner uuid, of_topup text, to_endpoint uuid)
 RETURNS uuid
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
WITH created AS (
    INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
    SELECT derived_id('topup.ready', t.topup_id || ' ' || n.endpoint_id::text), o.partner_id, 'topup.ready', t.topup_id,
           o.order_id, n.endpoint_id
    FROM topups t
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    JOIN esims e ON e.topup_id = t.topup_id
    JOIN partner_endpoints n ON n.partner_id = o.partner_id
    WHERE t.topup_id = of_topup AND o.partner_id = of_partner AND e.ready_at IS NOT NULL AND e.erased_at IS NULL
      AND n.endpoint_id = to_endpoint AND n.nth > 0 AND n.purpose = 'webhooks'
    ON CONFLICT DO NOTHING
    RETURNING delivery_id, partner_id, topup_id, endpoint_id
), linked AS (
    INSERT INTO further_deliveries (topup_id, delivery_id)
    SELECT topup_id, delivery_id FROM created
    ON CONFLICT DO NOTHING
), due AS (
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', endpoint_id::text, partner_id, now() FROM created
    ON CONFLICT DO NOTHING
)
SELECT delivery_id FROM created
$function$

CREATE OR REPLACE FUNCTION public.derived_id(kind text, source text)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ SELECT md5(kind || ' ' || source)::uuid $function$

CREATE OR REPLACE FUNCTION public.endpoint_blocked()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    INSERT INTO history (endpoint_id, kind, after)
    VALUES (NEW.endpoint_id, CASE WHEN NEW.blocks > 0 THEN 'blocked' ELSE 'unblocked' END,
            CASE WHEN NEW.blocks > 0 THEN jsonb_build_object('failures', NEW.failures) END);
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.endpoint_moved()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    VALUES (NEW.endpoint_id, 'moved', '', 'moved', NEW.partner_id, now())
    ON CONFLICT (id) DO UPDATE SET at = excluded.at;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.entry_costed()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    product text;
BEGIN
    IF NEW.extension_id IS NOT NULL THEN
        SELECT x.provider, x.option_id, x.provider_option_id INTO NEW.provider, NEW.option_id, product
        FROM extensions x WHERE x.extension_id = NEW.extension_id;
    ELSIF NEW.kind = 'refund' THEN
        SELECT n.provider, n.option_id, n.cost, n.cost_currency INTO NEW.provider, NEW.option_id, NEW.cost, NEW.cost_currency
        FROM account_entries n
        WHERE n.topup_id = NEW.topup_id AND n.extension_id IS NULL AND n.kind IN ('charge', 'late_charge');
        RETURN NEW;
    ELSE
        SELECT p.provider, t.option_id, t.provider_option_id INTO NEW.provider, NEW.option_id, product
        FROM topups t JOIN placements p ON p.placement_id = t.placement_id WHERE t.topup_id = NEW.topup_id;
    END IF;
    SELECT c.cost, c.currency INTO NEW.cost, NEW.cost_currency FROM cost_of(NEW.option_id, NEW.provider, product) c;
    RETURN NEW;
END
$function$

CREATE OR REPLACE FUNCTION public.esim_returned()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM make_events('esim.returned', NEW.topup_id);
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.events_of_topup(topup_id text)
 RETURNS uuid[]
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ SELECT ARRAY[derived_id('topup.failed', topup_id)] $function$

CREATE OR REPLACE FUNCTION public.extension_accounted()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM add_entry(
        NEW.partner_id, NEW.currency,
        CASE WHEN NEW.state = 'refused' THEN 'release' WHEN OLD.state = 'refused' THEN 'late_charge' ELSE 'charge' END,
        CASE WHEN NEW.state = 'added' THEN -NEW.price ELSE 0 END, CASE WHEN OLD.state = 'refused' THEN 0 ELSE NEW.price END,
        NEW.topup_id, NEW.extension_id, NULL, NULL, 'system');
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.extension_ended()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF NEW.state = 'added' THEN
        UPDATE esim_requests SET poll_at = now() WHERE topup_id = NEW.topup_id;
    END IF;
    PERFORM make_events(
        CASE NEW.state WHEN 'added' THEN 'extension.ready' ELSE 'extension.failed' END, NEW.topup_id, NEW.extension_id::text,
        jsonb_strip_nulls(jsonb_build_object(
            'external_id', NEW.external_id, 'option_id', NEW.option_id, 'has_new_profile', NEW.has_new_profile,
            'price', CASE WHEN NEW.price IS NOT NULL THEN
                jsonb_build_object('amount', NEW.price, 'currency', NEW.currency) END,
            'reason', CASE WHEN NEW.state = 'refused' THEN NEW.reason END,
            'message', CASE WHEN NEW.state = 'refused' THEN NEW.message END)));
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.first_endpoint()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, created_at)
    VALUES (NEW.partner_id, NEW.partner_id, 0, NEW.created_at)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.forget_losses_of_another_cluster()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    DELETE FROM commit_losses
    WHERE timeline > ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.further_delivery_of_its_topup()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    -- Both may be gone by then, and the partner may have deleted the endpoint: then the webhook goes to nobody.
    IF EXISTS (
        SELECT FROM further_deliveries f
        LEFT JOIN deliveries d ON d.delivery_id = f.delivery_id
        WHERE f.topup_id = NEW.topup_id AND f.delivery_id = NEW.delivery_id
          AND (d.topup_id = f.topup_id AND (d.endpoint_id IS NOT NULL OR d.kind <> 'topup.ready')
               AND NOT EXISTS (SELECT FROM partner_endpoints e
                               WHERE e.endpoint_id = d.endpoint_id AND e.partner_id <> d.partner_id)
               AND d.partner_id = (SELECT p.partner_id FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                                   WHERE t.topup_id = f.topup_id)) IS NOT TRUE
    ) THEN
        RAISE EXCEPTION 'delivery % is not an event about topup % or one of it to a further endpoint of its partner',
            NEW.delivery_id, NEW.topup_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.in_trouble_since(downloaded_at timestamp with time zone, read_at timestamp with time zone)
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE
AS $function$ SELECT CASE WHEN read_at >= downloaded_at + interval '15 minutes' THEN downloaded_at END $function$

CREATE OR REPLACE FUNCTION public.is_pointless(kind text, events text[], topup_id text, is_of_its_order boolean, refused_at timestamp with time zone, topup_state text, ready_at timestamp with time zone)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT kind <> 'topup.ready' AND (
        kind NOT LIKE 'notice.%' AND kind <> ALL (events)
        OR topup_id IS NOT NULL AND (is_of_its_order AND (refused_at IS NULL OR kind = 'order.cancelled')) IS NOT TRUE
        OR kind = 'order.cancelled' AND refused_at IS NULL
        OR kind = 'topup.failed' AND (topup_state = 'failed' AND ready_at IS NULL) IS NOT TRUE
        OR kind = 'topup.on_hold' AND (topup_state = 'failed' OR ready_at IS NOT NULL))
$function$

CREATE OR REPLACE FUNCTION public.is_unconfirmed(kind text, refused_at timestamp with time zone, answer_by timestamp with time zone)
 RETURNS boolean
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
    SELECT kind NOT IN ('topup.ready', 'order.cancelled') AND (refused_at IS NOT NULL OR coalesce(answer_by > now(), false))
$function$

CREATE OR REPLACE FUNCTION public.keep_order_of_extension(kept uuid)
 RETURNS SETOF uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM FROM extensions x
    JOIN topups t ON t.topup_id = x.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    WHERE x.extension_id = kept
    FOR KEY SHARE OF o;
    PERFORM FROM extensions x JOIN accounts a ON a.partner_id = x.partner_id AND a.currency = x.currency
    WHERE x.extension_id = kept AND x.price IS NOT NULL
    FOR NO KEY UPDATE OF a;
    RETURN NEXT kept;
END
$function$

CREATE OR REPLACE FUNCTION public.key_ended(of_partner uuid, key text, named text, at timestamp with time zone)
 RETURNS void
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
    INSERT INTO ended_keys AS k (access_key, partner_id, name, ended_at)
    SELECT key, of_partner, named, greatest(least(at, now()), '0001-01-01 00:00:00+00')
    ON CONFLICT (access_key) DO UPDATE SET partner_id = excluded.partner_id, name = excluded.name;
    DELETE FROM ended_keys WHERE access_key IN (
        SELECT access_key FROM ended_keys WHERE partner_id = of_partner ORDER BY ended_at DESC, access_key OFFSET 20);
$function$

CREATE OR REPLACE FUNCTION public.kind_of_work(state text, attempt integer)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN CASE state WHEN 'accepted'::text THEN CASE WHEN (attempt = 0) THEN 'buy'::text ELSE 'buy_again'::text END WHEN 'placing'::text THEN 'look_up'::text ELSE 'collect'::text END

CREATE OR REPLACE FUNCTION public.lock_accounts(of_placements uuid[])
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM FROM accounts a
    WHERE a.partner_id IN (SELECT p.partner_id FROM placements p WHERE p.placement_id = ANY (of_placements))
    ORDER BY a.partner_id, a.currency FOR NO KEY UPDATE;
END
$function$

CREATE OR REPLACE FUNCTION public.make_events(of_kind text, of_topup text, detail text DEFAULT NULL::text, says jsonb DEFAULT NULL::jsonb)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    WITH wanted AS (
        SELECT o.order_id, o.partner_id, o.answer_by, nullif(e.endpoint_id, o.partner_id) AS endpoint_id, e.lane
        FROM topups t
        JOIN placements p ON p.placement_id = t.placement_id
        JOIN orders o ON o.order_id = p.order_id
        JOIN partner_endpoints e ON e.partner_id = o.partner_id
        WHERE t.topup_id = of_topup AND (o.refused_at IS NULL OR of_kind = 'order.cancelled') AND of_kind = ANY (e.events)
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id, notice)
        SELECT derived_id(of_kind, concat_ws(' ', of_topup, detail, endpoint_id)), partner_id, of_kind, of_topup, order_id,
               endpoint_id, says
        FROM wanted
        ON CONFLICT DO NOTHING
        RETURNING delivery_id, endpoint_id
    ), linked AS (
        INSERT INTO further_deliveries (topup_id, delivery_id)
        SELECT of_topup, delivery_id FROM created
        ON CONFLICT DO NOTHING
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', lane, partner_id, greatest(answer_by, now())
    FROM created JOIN wanted ON wanted.endpoint_id IS NOT DISTINCT FROM created.endpoint_id;
END
$function$

CREATE OR REPLACE FUNCTION public.mark_returned(returned_topup text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    UPDATE esims SET profile = NULL, erased_at = coalesce(erased_at, now()), returned_at = now()
    WHERE topup_id = returned_topup AND returned_at IS NULL
      AND (SELECT r.give_back = 'returned' FROM esim_requests r WHERE r.topup_id = returned_topup);
    RETURN FOUND;
END
$function$

CREATE OR REPLACE FUNCTION public.may_be_refused(of_order uuid)
 RETURNS boolean
 LANGUAGE sql
 STABLE
RETURN (EXISTS (SELECT FROM orders o WHERE ((o.order_id = may_be_refused.of_order) AND (o.answering IS NOT NULL) AND (o.refused_at IS NULL) AND (o.answer_by > now()) AND (NOT (EXISTS (SELECT FROM placements p WHERE ((p.order_id = o.order_id) AND (p.state = ANY (ARRAY['placed'::text, 'parked'::text])))))))))

CREATE OR REPLACE FUNCTION public.next_configuration_version()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    -- This changes nothing and locks nothing. It fails for a role that may not raise the version: notifiers have a privilege
    -- on partners only to lock their rows.
    UPDATE system SET version = version WHERE false;
    NEW.version := next_version_of_row();
    RETURN NEW;
END
$function$

CREATE OR REPLACE FUNCTION public.next_version_of_row()
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF pg_trigger_depth() = 0 THEN
        RAISE EXCEPTION 'only a trigger takes the version of a row' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM pg_advisory_xact_lock('options'::regclass::bigint);
    RETURN nextval('configuration_versions');
END
$function$

CREATE OR REPLACE FUNCTION public.note_provider_reference()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.provider_reference IS NOT NULL THEN
        DELETE FROM provider_references
        WHERE reference = OLD.provider_reference AND placement_id = OLD.placement_id;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.provider_reference IS NOT NULL THEN
        INSERT INTO provider_references VALUES (NEW.provider_reference, NEW.placement_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.note_topup_change(of_topup text, change text, changed_at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    INSERT INTO topup_changes (partner_id, at, topup_id, change)
    SELECT o.partner_id, greatest(changed_at, o.answer_by), of_topup, note_topup_change.change
    FROM topups t JOIN placements p ON p.placement_id = t.placement_id JOIN orders o ON o.order_id = p.order_id
    WHERE t.topup_id = of_topup AND (o.refused_at IS NULL OR o.cancelled_at IS NOT NULL)
    ON CONFLICT DO NOTHING;
END
$function$

CREATE OR REPLACE FUNCTION public.offered_by(list text)
 RETURNS text
 LANGUAGE sql
 STABLE
 SET search_path TO 'public', 'pg_temp'
AS $function$
    SELECT concat_ws(' ', (SELECT max(o.version) FROM options o), list,
                     (SELECT l.version FROM price_lists l WHERE l.price_list = list),
                     (SELECT extract(epoch FROM max(p.valid_from)) FROM prices p WHERE p.price_list = list AND p.valid_from <= now()))
$function$

CREATE OR REPLACE FUNCTION public.oldest_writer()
 RETURNS xid8
 LANGUAGE sql
 STABLE
RETURN (SELECT min(running.id) AS min FROM pg_snapshot_xip(pg_current_snapshot()) running(id) WHERE ((running.id)::xid = ANY (ARRAY(SELECT pg_locks.transactionid FROM pg_locks WHERE ((pg_locks.locktype = 'transactionid'::text) AND (pg_locks.mode = 'ExclusiveLock'::text) AND (pg_locks.virtualtransaction = ANY (ARRAY(SELECT pg_locks_1.virtualtransaction FROM pg_locks pg_locks_1 WHERE ((pg_locks_1.mode = 'RowExclusiveLock'::text) AND (pg_locks_1.relation = ANY (ARRAY[('placements'::regclass)::oid, ('deliveries'::regclass)::oid, ('topup_changes'::regclass)::oid])) AND (pg_locks_1.database = (SELECT pg_database.oid FROM pg_database WHERE (pg_database.datname = current_database()))))))))))))

CREATE OR REPLACE FUNCTION public.option_at(o options, at_provider text)
 RETURNS text
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN CASE WHEN ((o).provider = at_provider) THEN (o).provider_option_id WHEN (at_provider = 'sandbox'::text) THEN ((o).option_id)::text ELSE (SELECT (pair.value ->> 'provider_option_id'::text) FROM jsonb_array_elements((option_at.o).alternatives) pair(value) WHERE ((pair.value ->> 'provider'::text) = option_at.at_provider) LIMIT 1) END

CREATE OR REPLACE FUNCTION public.option_updated()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
 SET jit TO 'off'
AS $function$
BEGIN
    NEW.networks = (SELECT array_agg(DISTINCT lower(concat_ws(E'\n', of, name #>> '{}')))
                    FROM jsonb_path_query(coalesce(NEW.facts->'coverage', NEW.told->'coverage'), '$[*]') covered,
                         jsonb_path_query(covered, '$.networks[*].name') name,
                         unnest(ARRAY[NULL, covered->>'country']) of);
    NEW.updated_at = clock_timestamp();
    IF TG_OP = 'INSERT' THEN
        NEW.updated_at = coalesce((SELECT o.updated_at FROM options o WHERE o.option_id = NEW.option_id), NEW.updated_at);
    END IF;
    RETURN NEW;
END
$function$

CREATE OR REPLACE FUNCTION public.order_cancelled()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM make_events('order.cancelled', min(t.topup_id), NULL, jsonb_strip_nulls(jsonb_build_object(
        'units', count(*),
        'price', CASE WHEN bool_or(t.terms::jsonb ? 'price') THEN jsonb_build_object(
            'amount', sum((t.terms::jsonb->'price'->>'amount')::bigint),
            'currency', min(t.terms::jsonb->'price'->>'currency')) END)))
    FROM placements p JOIN topups t ON t.placement_id = p.placement_id
    WHERE p.order_id = NEW.order_id;
    RETURN NULL;
END
$function$

VIEW order_deliveries WITH (security_invoker=true) AS
 SELECT p.order_id,
    t.topup_id,
    named.delivery_id
   FROM (((placements p
     JOIN topups t ON ((t.placement_id = p.placement_id)))
     LEFT JOIN esims e ON ((e.topup_id = t.topup_id)))
     CROSS JOIN LATERAL unnest((e.delivery_id || ARRAY( SELECT f.delivery_id
           FROM further_deliveries f
          WHERE (f.topup_id = t.topup_id)))) named(delivery_id))
  WHERE (named.delivery_id IS NOT NULL);

CREATE OR REPLACE FUNCTION public.partner_access_key_free()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF EXISTS (SELECT FROM partner_keys WHERE access_key = NEW.access_key) THEN
        RAISE EXCEPTION 'the access key is a further key of a partner' USING ERRCODE = 'unique_violation',
            CONSTRAINT = 'partners_access_key_key';
    END IF;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.partner_key_changed()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    UPDATE partners SET old_access_key = old_access_key WHERE partner_id = coalesce(NEW.partner_id, OLD.partner_id);
    IF EXISTS (SELECT FROM partners WHERE access_key = NEW.access_key)
       OR EXISTS (SELECT FROM partners WHERE old_access_key = NEW.access_key) THEN
        RAISE EXCEPTION 'the access key is the one of a partner' USING ERRCODE = 'unique_violation',
            CONSTRAINT = 'partner_keys_access_key_key';
    END IF;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.partner_key_ended()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF TG_TABLE_NAME = 'partner_keys' THEN
        IF EXISTS (SELECT FROM partners WHERE partner_id = OLD.partner_id AND erased_at IS NULL) THEN
            PERFORM key_ended(OLD.partner_id, OLD.access_key, OLD.name, now());
        END IF;
        RETURN NULL;
    END IF;
    IF NEW.erased_at IS NOT NULL THEN
        DELETE FROM ended_keys WHERE partner_id = NEW.partner_id;
        RETURN NULL;
    END IF;
    IF OLD.access_key <> NEW.access_key AND OLD.access_key IS DISTINCT FROM NEW.old_access_key
       AND NOT starts_with(OLD.access_key, 'ended-') THEN
        PERFORM key_ended(OLD.partner_id, OLD.access_key, NULL, now());
    END IF;
    IF OLD.old_access_key <> NEW.access_key AND OLD.old_access_key IS DISTINCT FROM NEW.old_access_key THEN
        PERFORM key_ended(OLD.partner_id, OLD.old_access_key, NULL, OLD.old_keys_until);
    END IF;
    -- A key that is given again has not ended.
    DELETE FROM ended_keys WHERE access_key = NEW.access_key;
    RETURN NULL;
END
$function$

VIEW partner_units WITH (security_invoker=true) AS
 SELECT o.partner_id,
    o.order_id,
    o.external_order_id,
    t.topup_id,
    t."position",
    t.option_id,
        CASE
            WHEN (e.ready_at IS NOT NULL) THEN 'ready'::text
            WHEN (t.state = 'failed'::text) THEN 'failed'::text
            WHEN (p.state = 'parked'::text) THEN 'on_hold'::text
            ELSE 'processing'::text
        END AS state,
    p.refusal_status,
    p.refusal_message,
    e.iccid,
    e.profile,
    e.ready_at,
    e.erased_at,
    e.delivery_id,
    d.state AS delivery,
    d.attempt,
    d.attempted_at,
    d.delivered_at,
    d.created_at AS delivery_created_at,
    e.returned_at,
    ((t.state = 'failed'::text) AND (NOT may_be_refused(o.order_id))) AS has_failed,
    (p.state = 'parked'::text) AS is_parked,
    t.terms,
    t.metadata,
    o.metadata AS order_metadata
   FROM ((((orders o
     JOIN placements p ON ((p.order_id = o.order_id)))
     JOIN topups t ON ((t.placement_id = p.placement_id)))
     LEFT JOIN esims e ON ((e.topup_id = t.topup_id)))
     LEFT JOIN deliveries d ON (((d.delivery_id = e.delivery_id) AND (d.partner_id = o.partner_id))));

CREATE OR REPLACE FUNCTION public.placement_held()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM make_events('topup.on_hold', t.topup_id)
    FROM topups t LEFT JOIN esims e ON e.topup_id = t.topup_id
    WHERE t.placement_id = NEW.id AND t.state = 'pending' AND e.ready_at IS NULL;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.poll_esims(of_provider text, per_hour integer)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    used_until timestamptz;
    budget bigint;
    wishes text[] := '{esim.installed,esim.first_used,esim.low_data,esim.used_up,esim.expiring,esim.expired}';
    wish record;
    walked timestamptz;
    polled bigint;
BEGIN
    SELECT greatest(polled_at, now() - interval '5 minutes') INTO used_until FROM providers WHERE name = of_provider
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    FOR wish IN
        SELECT endpoint_id, partner_id, polls_up_to, events && wishes AS wanted FROM partner_endpoints
        WHERE purpose = 'webhooks' AND (events && wishes OR polls_up_to IS NOT NULL)
        ORDER BY endpoint_id
    LOOP
        IF NOT wish.wanted THEN
            UPDATE partner_endpoints SET polls_up_to = NULL WHERE endpoint_id = wish.endpoint_id;
            CONTINUE;
        END IF;
        WITH delivered AS MATERIALIZED (
            SELECT topup_id, created_at FROM deliveries
            WHERE partner_id = wish.partner_id AND created_at > wish.polls_up_to AND created_at < now() - interval '1 minute'
              AND kind = 'topup.ready' AND endpoint_id IS NULL
            ORDER BY created_at FETCH FIRST 1000 ROWS WITH TIES
        ), followed AS (
            INSERT INTO esim_requests AS r (topup_id, partner_id, provider, poll_at)
            SELECT d.topup_id, wish.partner_id, e.provider, now()
            FROM delivered d JOIN esims e ON e.topup_id = d.topup_id
            WHERE e.ready_at IS NOT NULL AND e.erased_at IS NULL AND e.returned_at IS NULL
            ON CONFLICT (topup_id) DO UPDATE SET poll_at = now() WHERE r.poll_at IS NULL
        )
        SELECT max(created_at) INTO walked FROM delivered;
        IF walked IS NOT NULL OR wish.polls_up_to IS NULL THEN
            UPDATE partner_endpoints SET polls_up_to = greatest(polls_up_to, coalesce(walked, now() - interval '1 minute'))
            WHERE endpoint_id = wish.endpoint_id;
        END IF;
    END LOOP;
    budget := floor(extract(epoch FROM now() - used_until) * per_hour / 3600);
    IF budget < 1 THEN
        RETURN 0;
    END IF;
    WITH chosen AS MATERIALIZED (
        SELECT r.topup_id FROM esim_requests r
        WHERE r.provider = of_provider AND r.poll_at <= now()
        ORDER BY r.poll_at LIMIT budget FOR UPDATE SKIP LOCKED
    ), followed AS MATERIALIZED (
        -- A question that has no answer is asked again after a day, unless its answer says another time.
        UPDATE esim_requests r
        SET poll_at = CASE WHEN e.topup_id IS NOT NULL THEN now() + interval '1 day' END,
            polled_at = CASE WHEN e.topup_id IS NOT NULL THEN now() END
        FROM chosen c LEFT JOIN esims e
            ON e.topup_id = c.topup_id AND e.returned_at IS NULL AND EXISTS (
                SELECT FROM esim_requests q
                WHERE q.topup_id = c.topup_id
                  -- A claim is looked at whether its partner wants to hear of its use or not, until it is decided.
                  AND (q.give_back = 'claimed'
                       OR (e.erased_at IS NULL AND EXISTS (
                               SELECT FROM partner_endpoints n WHERE n.partner_id = q.partner_id AND n.polls_up_to IS NOT NULL))))
        WHERE r.topup_id = c.topup_id
        RETURNING r.topup_id, r.provider, r.partner_id, r.polled_at
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT derived_id('report', topup_id), 'usage', provider, topup_id, partner_id, now() FROM followed
    WHERE polled_at IS NOT NULL
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS polled = ROW_COUNT;
    -- What is not used of the budget is kept for five minutes.
    UPDATE providers SET polled_at = used_until + make_interval(secs => polled * 3600.0 / per_hour) WHERE name = of_provider;
    RETURN polled;
END
$function$

CREATE OR REPLACE FUNCTION public.price_in(list text, option uuid, moment timestamp with time zone DEFAULT now())
 RETURNS TABLE(amount bigint, currency text, valid_from timestamp with time zone)
 LANGUAGE sql
 STABLE
AS $function$
    SELECT p.amount, l.currency, p.valid_from FROM prices p JOIN price_lists l ON l.price_list = p.price_list
    WHERE p.price_list = list AND p.option_id = option AND p.valid_from <= moment
    ORDER BY p.valid_from DESC LIMIT 1
$function$

CREATE OR REPLACE FUNCTION public.refuse_order(refused_order uuid, is_cancelled boolean)
 RETURNS TABLE(placement_id uuid, was text, attempt integer, refusal_status text, refusal_message text, reason text)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    -- The locks are taken in one order, so that two calls wait for each other instead of deadlocking. They also wait
    -- for a claim or a settlement that is under way, whose outcome the next statements see.
    PERFORM FROM placements p WHERE p.order_id = refused_order ORDER BY p.placement_id FOR UPDATE;
    IF EXISTS (SELECT FROM placements p WHERE p.order_id = refused_order AND p.state NOT IN ('accepted', 'failed')) THEN
        RETURN;
    END IF;
    -- Before the units, because the trigger topup_failed tells no partner of the units of a refused order.
    UPDATE orders o SET refused_at = now(), cancelled_at = CASE WHEN is_cancelled THEN now() END
    WHERE o.order_id = refused_order AND o.refused_at IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
        WITH before AS MATERIALIZED (
            SELECT p.placement_id, p.state FROM placements p WHERE p.order_id = refused_order
        ), moved AS (
            -- An order that is refused keeps nothing for a first claim, which can never come.
            UPDATE placements p SET state = 'refused', first_claim = NULL FROM before
            WHERE p.placement_id = before.placement_id
            RETURNING p.placement_id, before.state, p.attempt, p.refusal_status, p.refusal_message, p.reason
        ), done AS (
            DELETE FROM work WHERE id IN (SELECT moved.placement_id FROM moved)
        ), failed AS (
            -- A unit gets the reason of its placement if there is one.
            UPDATE topups t
            SET state = 'failed',
                reason = coalesce(moved.reason, CASE WHEN is_cancelled THEN 'order_cancelled' ELSE 'order_refused' END)
            FROM moved WHERE t.placement_id = moved.placement_id
        )
        SELECT * FROM moved ORDER BY moved.placement_id;
END
$function$

CREATE OR REPLACE FUNCTION public.report_of_esim(of_provider text, of_unit text, of_iccid text, report text, words text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    about record;
    is_full boolean := false;
BEGIN
    SELECT e.topup_id, p.placement_id, p.order_id, p.partner_id INTO about
    FROM esims e
    JOIN topups t ON t.topup_id = e.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    JOIN orders o ON o.order_id = p.order_id
    WHERE e.topup_id = coalesce(
            (SELECT u.topup_id FROM esims u WHERE u.provider = of_provider AND u.provider_unit_id = of_unit),
            (SELECT i.topup_id FROM esims i WHERE i.iccid = of_iccid AND i.provider = of_provider
             ORDER BY i.ready_at DESC, i.topup_id DESC LIMIT 1))
      AND e.ready_at IS NOT NULL AND e.erased_at IS NULL AND e.returned_at IS NULL
    FOR KEY SHARE OF o;
    IF NOT FOUND AND coalesce(of_unit, of_iccid) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    IF about.topup_id IS NOT NULL THEN
        INSERT INTO esim_requests (topup_id, partner_id, provider) VALUES (about.topup_id, about.partner_id, of_provider)
        ON CONFLICT DO NOTHING;
        SELECT reports >= 100 INTO is_full FROM esim_requests WHERE topup_id = about.topup_id FOR UPDATE;
    END IF;
    IF NOT is_full THEN
        INSERT INTO history (history_id, order_id, placement_id, topup_id, provider, kind, detail)
        VALUES (derived_id('reported', of_provider || ' ' || report), about.order_id, about.placement_id, about.topup_id,
                of_provider, 'reported', left(words, 200))
        ON CONFLICT DO NOTHING;
        IF NOT FOUND OR about.topup_id IS NULL THEN
            RETURN FOUND;
        END IF;
        UPDATE esim_requests SET reports = reports + 1 WHERE topup_id = about.topup_id;
    END IF;
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT derived_id('report', r.topup_id), 'usage', r.provider, r.topup_id, r.partner_id,
           greatest(now(), r.read_at + interval '5 minutes')
    FROM esim_requests r WHERE r.topup_id = about.topup_id
    ON CONFLICT DO NOTHING;
    -- One that waits already keeps its age.
    IF FOUND THEN
        UPDATE esim_requests SET reported_at = now() WHERE topup_id = about.topup_id;
    END IF;
    RETURN NOT is_full;
END
$function$

CREATE OR REPLACE FUNCTION public.resend_begun()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    VALUES (NEW.resend_id, 'resend', '', 'resend', NEW.partner_id, now())
    ON CONFLICT (id) DO NOTHING;
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.resolve_extension(resolved uuid, after_attempt integer, is_added boolean)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM keep_order_of_extension(resolved);
    UPDATE extensions
    SET state = CASE WHEN is_added THEN 'added' ELSE 'refused' END, ended_at = now(), reason = 'resolved', message = NULL,
        not_added_at = NULL
    WHERE extension_id = resolved AND state = 'parked' AND attempt = after_attempt;
    RETURN FOUND;
END
$function$

CREATE OR REPLACE FUNCTION public.resolve_give_back(resolved_topup text, after_attempt integer, is_returned boolean)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    UPDATE esim_requests
    SET give_back = CASE WHEN is_returned THEN 'returned' ELSE 'refused' END, ended_at = now(), reason = 'resolved',
        message = NULL, not_returned_at = NULL
    WHERE topup_id = resolved_topup AND give_back IN ('parked', 'claimed') AND attempt = after_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mark_returned(resolved_topup);
    RETURN true;
END
$function$

CREATE OR REPLACE FUNCTION public.resolve_placement(of_placement uuid, decision text, at_provider text, at_reference text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    parked placements;
    goes_on boolean := decision IN ('bought', 'retry');
    has_units boolean;
    pair jsonb;
    new_state text;
BEGIN
    IF decision NOT IN ('bought', 'not_bought', 'retry') OR (at_provider IS NOT NULL AND decision <> 'bought') THEN
        RAISE EXCEPTION 'the decision % at % is unknown', decision, at_provider USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO parked FROM placements WHERE placement_id = of_placement FOR UPDATE;
    IF NOT FOUND OR parked.state <> 'parked'
       OR (goes_on AND (SELECT refused_at IS NOT NULL FROM orders WHERE order_id = parked.order_id)) THEN
        RETURN false;
    END IF;
    has_units := EXISTS (SELECT FROM topups t JOIN esims e ON e.topup_id = t.topup_id WHERE t.placement_id = of_placement);
    IF has_units AND (decision = 'retry' OR at_provider IS NOT NULL) THEN
        RETURN false;
    END IF;
    IF at_provider IS NOT NULL THEN
        SELECT one INTO pair
        FROM jsonb_array_elements(coalesce(parked.alternatives, '[]') || coalesce(parked.tried, '[]')) one
        WHERE one->>'provider' = at_provider LIMIT 1;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        -- The units get the names that this provider has for their options.
        UPDATE topups SET provider_option_id = coalesce(pair->'options'->>option_id::text, provider_option_id)
        WHERE placement_id = of_placement;
    END IF;
    new_state := CASE decision WHEN 'bought' THEN 'placed' WHEN 'retry' THEN 'accepted' ELSE 'failed' END;
    UPDATE placements
    SET state = new_state, not_found_at = NULL, unknowns = 0, disputed = false,
        placed_at = CASE WHEN decision = 'bought' THEN now() END,
        -- A retry is another purchase, so look-ups must not ask about the old one. The stored reference is that of the
        -- placement's own provider.
        provider_reference = CASE WHEN decision = 'bought' AND at_reference IS NOT NULL THEN at_reference
                                  WHEN decision <> 'retry' AND at_provider IS NULL THEN provider_reference END,
        provider = coalesce(pair->>'provider', provider), lane = coalesce(pair->>'lane', lane),
        reason = CASE WHEN NOT goes_on THEN 'given_up' END,
        -- The operator has looked at this provider only, so no other one may be asked.
        alternatives = NULL
    WHERE placement_id = of_placement;
    -- Its collect or its next attempt is due, or nothing is left to do. In any case it no longer waits in `held`.
    IF goes_on THEN
        INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
        SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id, now()
        FROM placements WHERE placement_id = of_placement
        ON CONFLICT (id) DO UPDATE
        SET kind = excluded.kind, at = excluded.at, provider = excluded.provider, lane = excluded.lane;
    ELSE
        DELETE FROM work WHERE id = of_placement;
    END IF;
    DELETE FROM held WHERE id = of_placement;
    -- Units follow their placement. A unit with a profile stays ready. If the placement goes on, failed units without an eSIM
    -- get another chance; otherwise all units without a profile fail.
    UPDATE topups t
    SET state = CASE WHEN goes_on THEN 'pending' ELSE 'failed' END, reason = CASE WHEN NOT goes_on THEN 'given_up' END
    WHERE placement_id = of_placement
      AND CASE WHEN goes_on THEN state = 'failed' AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = t.topup_id)
               ELSE state = 'pending' AND NOT EXISTS (
                   SELECT FROM esims e WHERE e.topup_id = t.topup_id AND e.ready_at IS NOT NULL) END;
    RETURN true;
END
$function$

CREATE OR REPLACE FUNCTION public.route_option(of_option uuid, at_provider text, seen jsonb)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    UPDATE options o
    SET provider = first.pair->>'provider', provider_option_id = first.pair->>'provider_option_id',
        alternatives = (SELECT jsonb_agg(one ORDER BY n)
                        FROM jsonb_array_elements(seen) WITH ORDINALITY AS pairs (one, n)
                        WHERE one->>'provider' <> at_provider),
        cost = NULL, cost_currency = NULL, told = NULL
    FROM (SELECT one AS pair FROM jsonb_array_elements(seen) one WHERE one->>'provider' = at_provider LIMIT 1) first
    WHERE o.option_id = of_option AND o.provider <> at_provider
      AND seen = jsonb_build_object('provider', o.provider, 'provider_option_id', o.provider_option_id) || o.alternatives;
    RETURN FOUND;
END
$function$

CREATE OR REPLACE FUNCTION public.set_sandbox_balance(of_partner uuid, in_currency text, target bigint)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    was bigint;
BEGIN
    SELECT a.posted INTO was FROM accounts a JOIN partners p ON p.partner_id = a.partner_id
    WHERE a.partner_id = of_partner AND a.currency = in_currency AND p.environment = 'sandbox'
    FOR NO KEY UPDATE OF a;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF was <> target THEN
        PERFORM add_entry(of_partner, in_currency, 'adjustment', target - was, 0, NULL, NULL, 'sandbox ' || gen_random_uuid(),
                          'set by the partner in the sandbox', 'partner');
        PERFORM tell_low_balances(of_partner);
    END IF;
    RETURN true;
END
$function$

CREATE OR REPLACE FUNCTION public.tell_low_balances(of_partner uuid)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    events bigint;
BEGIN
    WITH crossed AS MATERIALIZED (
        SELECT a.partner_id, a.currency FROM accounts a JOIN partners p ON p.partner_id = a.partner_id
        WHERE a.told_below IS DISTINCT FROM CASE WHEN a.posted - a.held + a.credit_limit < a.warn_below THEN a.warn_below END
          AND p.disabled_at IS NULL AND (of_partner IS NULL OR a.partner_id = of_partner)
        ORDER BY a.partner_id, a.currency
        FOR NO KEY UPDATE OF a
    ), told AS (
        UPDATE accounts a
        SET told_below = CASE WHEN a.posted - a.held + a.credit_limit < a.warn_below THEN a.warn_below END
        FROM crossed c WHERE a.partner_id = c.partner_id AND a.currency = c.currency
        RETURNING a.partner_id, a.told_below, jsonb_build_object(
            'currency', a.currency, 'available', a.posted - a.held + a.credit_limit, 'threshold', a.told_below,
            'as_of', clock_timestamp(), 'last_entry', a.last_entry) AS says
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, notice)
        SELECT gen_random_uuid(), t.partner_id, 'balance.low', nullif(e.endpoint_id, e.partner_id), t.says
        FROM told t JOIN partner_endpoints e ON e.partner_id = t.partner_id
        WHERE t.told_below IS NOT NULL AND 'balance.low' = ANY (e.events)
        RETURNING delivery_id, partner_id, endpoint_id
    ), due AS (
        INSERT INTO work (id, kind, provider, lane, partner_id, at)
        SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now() FROM created
        RETURNING id
    )
    SELECT count(*) INTO events FROM due;
    RETURN events;
END
$function$

CREATE OR REPLACE FUNCTION public.tell_of_use(of_topup text, of_kind text, threshold text, says jsonb)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF of_kind NOT LIKE 'esim.%' OR of_kind = 'esim.returned' THEN
        RAISE EXCEPTION 'an event % does not follow from the use of an eSIM', of_kind USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM make_events(of_kind, of_topup, threshold, says);
END
$function$

CREATE OR REPLACE FUNCTION public.topup_extension_noted()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM note_topup_change(NEW.topup_id, 'extended', now());
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.topup_failed()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM make_events('topup.failed', NEW.topup_id);
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.topup_failure_noted()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM note_topup_change(NEW.topup_id, 'failed', now());
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.topup_return_noted()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM note_topup_change(NEW.topup_id, 'returned', now());
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.unit_accounted()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    PERFORM account_for(ARRAY (SELECT t.placement_id FROM topups t WHERE t.topup_id = NEW.topup_id AND t.terms IS NOT NULL));
    RETURN NULL;
END
$function$

CREATE OR REPLACE FUNCTION public.verify_channel(of_partner uuid, code text, OUT outcome text, OUT tries_left integer)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    -- How many wrong codes are taken before a new one has to be sent.
    most constant integer := 5;
    channel partner_endpoints;
    key bytea := convert_to(code, 'UTF8');
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    -- The lock keeps two requests at the same time from counting one try.
    SELECT * INTO channel FROM partner_endpoints WHERE partner_id = of_partner AND purpose = 'notices' FOR UPDATE;
    tries_left := 0;
    IF NOT FOUND THEN
        outcome := 'none';
        RETURN;
    END IF;
    IF channel.verified_at IS NOT NULL THEN
        outcome := 'before';
        RETURN;
    END IF;
    IF channel.code_digest IS NULL OR channel.code_tries >= most OR coalesce(channel.code_until <= now(), true) THEN
        outcome := 'ended';
        RETURN;
    END IF;
    -- A longer key would be hashed first. Codes are much shorter, so it is wrong anyway.
    IF length(key) BETWEEN 1 AND 64 THEN
        FOR i IN 0 .. length(key) - 1 LOOP
            inner_pad := set_byte(inner_pad, i, get_byte(inner_pad, i) # get_byte(key, i));
            outer_pad := set_byte(outer_pad, i, get_byte(outer_pad, i) # get_byte(key, i));
        END LOOP;
        IF channel.code_digest = sha256(outer_pad || sha256(inner_pad || convert_to(E'notice code\n', 'UTF8')
                                                                        || uuid_send(channel.endpoint_id))) THEN
            UPDATE partner_endpoints SET verified_at = now(), code_digest = NULL WHERE endpoint_id = channel.endpoint_id;
            outcome := 'verified';
            RETURN;
        END IF;
    END IF;
    UPDATE partner_endpoints SET code_tries = code_tries + 1 WHERE endpoint_id = channel.endpoint_id;
    outcome := 'wrong';
    tries_left := most - channel.code_tries - 1;
END
$function$

CREATE OR REPLACE FUNCTION public.work_of_topup(topup_id text)
 RETURNS uuid[]
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ SELECT ARRAY[derived_id('erase', topup_id), derived_id('usage', topup_id), derived_id('report', topup_id),
                   derived_id('offers', topup_id), derived_id('give_back', topup_id), derived_id('extend', topup_id),
                   derived_id('suspend', topup_id)] $function$
