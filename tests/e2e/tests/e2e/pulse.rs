//! What the pulse shows: a server that accepts connections but commits nothing, and a server that
//! must not be used.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use testkit::postgres::PostgresServer;
use testkit::stack::{Stack, Stage};
use testkit::{http, wait};

#[tokio::test]
async fn a_stage_is_not_ready_while_nothing_can_be_committed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    let builder = Stack::builder().database_server(server.url());
    let mut stack = builder.start().await.unwrap();
    let http = http::client().unwrap();

    // Connections stay open, and new ones are accepted by the kernel. An outage gets one line per
    // second, so the one that names the commit need not be the first.
    server.freeze().unwrap();
    for stage in Stage::OURS {
        let url = stack.process(stage).unwrap().program().ready_url.clone();
        wait::soon(&format!("{} not to be ready", stage.name()), async || {
            let answer = http.get(&url).send().await?;
            if answer.status() != 503 {
                return Ok(None);
            }
            // It says so in the words of `esimctl attention`.
            let body: serde_json::Value = answer.json().await?;
            let found = &body["findings"][0];
            let is_told = found["alert"] == "DatabaseDown" && found["since"].is_string();
            Ok(is_told.then_some(()))
        })
        .await;
        let process = stack.process(stage).unwrap();
        let named = async || {
            Ok(process
                .log()?
                .contains("cannot commit to PostgreSQL")
                .then_some(()))
        };
        wait::soon("the line about commits", named).await;
    }
    server.thaw().unwrap();
    for stage in Stage::OURS {
        let process = stack.process(stage).unwrap();
        process.ready().await.unwrap();
        let over = async || {
            Ok(process
                .log()?
                .contains("PostgreSQL works again")
                .then_some(()))
        };
        wait::soon("the line at the end", over).await;
    }
}

#[tokio::test]
async fn a_stage_refuses_to_start_without_the_standby_that_the_operator_requires() {
    let mut stack = Stack::start().await.unwrap();
    for stage in Stage::OURS {
        let process = stack.process(stage).unwrap();
        process.terminate(Duration::from_secs(30)).await.unwrap();
        let settings = &mut process.program_mut().env;
        settings.insert("REQUIRE_SYNCHRONOUS".into(), "true".into());
        process.spawn().unwrap();
        let status = process.wait(Duration::from_secs(20)).await.unwrap();
        assert!(!status.success(), "{status}");
        let log = process.log().unwrap();
        assert!(
            log.contains("REQUIRE_SYNCHRONOUS is set: connect a synchronous standby"),
            "{log}"
        );
    }
}
