//! An agent that uses a program's tools by the Model Context Protocol, over its standard input and
//! output.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// An agent with the server that it has started, which ends with it.
pub struct Agent {
    _server: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    requests: u64,
}

impl Agent {
    /// Starts the program, which must call itself `program`.
    pub async fn start(command: &mut Command, program: &str) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.kill_on_drop(true).spawn()?;
        let mut agent = Self {
            to: server.stdin.take().context("stdin")?,
            from: BufReader::new(server.stdout.take().context("stdout")?),
            _server: server,
            requests: 0,
        };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let answer = agent.ask("initialize", hello).await?;
        ensure!(answer["serverInfo"]["name"] == program, "{answer}");
        ensure!(answer["capabilities"]["tools"].is_object(), "{answer}");
        agent
            .say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await?;
        Ok(agent)
    }

    async fn say(&mut self, message: &Value) -> Result<()> {
        self.to.write_all(format!("{message}\n").as_bytes()).await?;
        Ok(self.to.flush().await?)
    }

    async fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.requests += 1;
        let id = self.requests;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await?;
        let mut line = String::new();
        tokio::time::timeout(Duration::from_mins(1), self.from.read_line(&mut line)).await??;
        let answer: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        ensure!(answer["id"] == id && answer["error"].is_null(), "{answer}");
        Ok(answer["result"].clone())
    }

    /// The names of the tools.
    pub async fn tools(&mut self) -> Result<Vec<String>> {
        let listed = self.ask("tools/list", json!({})).await?;
        let tools = listed["tools"].as_array().context("tools")?.iter();
        Ok(tools
            .filter_map(|tool| Some(tool["name"].as_str()?.to_owned()))
            .collect())
    }

    /// The structured result of a tool, and whether it is an error.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Result<(Value, bool)> {
        let params = json!({"name": tool, "arguments": arguments});
        let result = self.ask("tools/call", params).await?;
        let is_error = result["isError"] == true;
        Ok((result["structuredContent"].clone(), is_error))
    }

    /// The result of a tool that must succeed.
    #[expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
    pub async fn told(&mut self, tool: &str, arguments: Value) -> Value {
        let (result, is_error) = self.call(tool, arguments).await.unwrap();
        assert!(!is_error, "{tool}: {result}");
        result
    }

    /// Calls a tool that must fail with this remedy, and returns the error.
    #[expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]
    pub async fn refused(&mut self, tool: &str, arguments: Value, remedy: &str) -> String {
        let (result, is_error) = self.call(tool, arguments).await.unwrap();
        let said = result["remedy"].as_str().unwrap_or_default();
        assert!(is_error && said.contains(remedy), "{tool}: {result}");
        result["error"].as_str().unwrap_or_default().to_owned()
    }
}
