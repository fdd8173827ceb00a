//! The membrane hides the rows of the partners that live in another cell.
//!
//! A cell that has divided has rows of partners that it no longer serves, until they are purged, and
//! it must neither buy nor deliver anything for them. So one restrictive policy on each table that
//! names a partner hides them from every statement. It begins at one commit and touches no row. The
//! locks of that commit wait for claims and settlements that run: each of them is either before it,
//! or finds no row.
//!
//! The check [`FREEZE`] on the orders refuses new ones of these partners. It is there from the freeze
//! on, before the membrane, and also refuses an order of an ingress that was stalled for long.

use std::time::Duration;

use pg::Result;
use sqlx::{AssertSqlSafe, PgConnection};
use store::orders::FREEZE;

use super::refusal::NotDivided;

/// The tables whose rows the membrane hides. Rows of other tables are reached through them only.
pub const TABLES: [&str; 9] = [
    "orders",
    "placements",
    "deliveries",
    "work",
    "held",
    "esim_requests",
    "resends",
    "partner_endpoints",
    "archived_orders",
];
/// The other tables that name a partner, and why their rows stay visible.
pub const VISIBLE: [(&str, &str); 2] = [
    (
        "partners",
        "ingress answers 503 to those that live elsewhere",
    ),
    ("refused_requests", "only operators read them"),
];
/// With this setting a session sees the hidden rows. `cell purge` and `cell check` need it.
pub(super) const SEE: &str = "SET esim.elsewhere = 'seen'";
/// How long most tries to lock the tables may hold up the stages.
const BRIEF: &str = "200";
/// Each fifth try waits longer than `deadlock_timeout`, because only then does PostgreSQL cancel an
/// autovacuum that holds one of the tables.
const PATIENT: &str =
    "(SELECT 500 + setting::int FROM pg_settings WHERE name = 'deadlock_timeout')";
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(300);

/// Runs statements whose only variable parts are names of our own.
pub(super) async fn run(connection: &mut PgConnection, statements: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(connection)
        .await?;
    Ok(())
}

/// Runs `change` in a transaction that has locked these tables. Each try to lock them lets those pass
/// that wait behind it after a short time.
pub(super) async fn locked<T>(
    connection: &mut PgConnection,
    tables: &[&str],
    mut change: impl AsyncFnMut(&mut PgConnection) -> Result<T, NotDivided>,
) -> Result<T, NotDivided> {
    let mut tries = 0;
    loop {
        tries += 1;
        let wait = if tries % 5 == 0 { PATIENT } else { BRIEF };
        // The walks come first: a sweep that runs ends before, and a later one waits without holding
        // any of the other tables.
        let lock = format!(
            "BEGIN; SELECT set_config('lock_timeout', ({wait})::text, true);
             LOCK TABLE walks IN EXCLUSIVE MODE; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE; SET LOCAL esim.elsewhere = 'seen'",
            tables.join(", ")
        );
        let once = async {
            run(connection, &lock).await?;
            let changed = change(connection).await?;
            run(connection, "COMMIT").await?;
            Ok(changed)
        };
        let error = match once.await {
            Ok(changed) => return Ok(changed),
            Err(NotDivided::Store(error)) => error,
            Err(refused) => {
                run(connection, "ROLLBACK").await?;
                return Err(refused);
            }
        };
        run(connection, "ROLLBACK").await?;
        // 55P03: a lock was not free in time.
        if !error.is_of(&["55P03", "40"]) {
            return Err(error.into());
        }
        if tries >= TRIES {
            return Err(NotDivided::Busy(tries, error));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lets the check of the orders refuse those of all partners with `moved_to`, and no others, in the
/// transaction of the caller. Rows that are refused or erased pass, because the answers and erasures
/// of older orders go on. `NOT VALID` leaves the rows that are there unread.
pub(super) async fn refuse_orders(connection: &mut PgConnection) -> Result<()> {
    let statement = format!(
        "DO $$ DECLARE ids text; BEGIN
             SELECT string_agg(quote_literal(partner_id), ',' ORDER BY partner_id) INTO ids FROM partners WHERE moved_to IS NOT NULL;
             ALTER TABLE orders DROP CONSTRAINT IF EXISTS {FREEZE};
             IF ids IS NOT NULL THEN
                 EXECUTE format('ALTER TABLE orders ADD CONSTRAINT {FREEZE} CHECK (partner_id <> ALL (ARRAY[%s]::uuid[])
                     OR refused_at IS NOT NULL OR erased_at IS NOT NULL) NOT VALID', ids);
             END IF;
         END $$"
    );
    run(connection, &statement).await
}

/// Hides the rows of all partners with `moved_to`, and of no others, in the transaction of the caller,
/// which holds the locks. Without such a partner nothing is hidden any more.
pub(super) async fn redraw(connection: &mut PgConnection) -> Result<()> {
    refuse_orders(connection).await?;
    lower(connection).await?;
    // A table without policies of its own shows nothing without a permissive one. FORCE, because the
    // triggers and the programs of a system without roles run as the owner. A row of a resend of
    // several partners names none.
    let statement = format!(
        "DO $$ DECLARE ids text; t text; BEGIN
             SELECT string_agg(quote_literal(partner_id), ',' ORDER BY partner_id) INTO ids FROM partners WHERE moved_to IS NOT NULL;
             IF ids IS NULL THEN RETURN; END IF;
             FOREACH t IN ARRAY '{{{}}}'::text[] LOOP
                 IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = t::regclass) THEN
                     EXECUTE format('CREATE POLICY here ON %I USING (true) WITH CHECK (true)', t);
                 END IF;
                 EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', t);
                 EXECUTE format('CREATE POLICY elsewhere ON %I AS RESTRICTIVE
                     USING ((partner_id = ANY (ARRAY[%s]::uuid[])) IS NOT TRUE OR current_setting(''esim.elsewhere'', true) = ''seen'')
                     WITH CHECK (true)', t, ids);
             END LOOP;
         END $$",
        TABLES.join(",")
    );
    run(connection, &statement).await
}

/// Takes the membrane away, in the transaction of the caller, which holds the locks.
pub(super) async fn lower(connection: &mut PgConnection) -> Result<()> {
    // A table whose triggers wait for the commit cannot be altered, so they run now.
    let statement = format!(
        "SET CONSTRAINTS ALL IMMEDIATE;
         DO $$ DECLARE t text; BEGIN
             FOREACH t IN ARRAY '{{{}}}'::text[] LOOP
                 EXECUTE format('DROP POLICY IF EXISTS elsewhere ON %I', t);
                 EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', t);
                 IF EXISTS (SELECT FROM pg_policy WHERE polrelid = t::regclass AND polname = 'here') THEN
                     EXECUTE format('DROP POLICY here ON %I', t);
                     EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', t);
                 END IF;
             END LOOP;
         END $$",
        TABLES.join(",")
    );
    run(connection, &statement).await
}

/// Whether rows are hidden.
pub async fn is_up(connection: &mut PgConnection) -> Result<bool> {
    let query =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_policy WHERE polname = 'elsewhere')");
    Ok(query.fetch_one(connection).await?)
}
