//! Tools for agents by the Model Context Protocol, over standard input and output. [`crate::mcp`]
//! says which tools there are.
//!
//! Guarantee: a tool is called only with arguments that are a JSON object, every message gets an
//! answer if the protocol provides for one, and an error always says what to do about it. What a
//! tool may change, and what it must not show, is decided by the tools.
//!
//! rmcp speaks the protocol. It gives no answer to a line that is not JSON, and takes a call whose
//! arguments are not an object for a method that it does not know. So each line is [judged] before
//! rmcp gets it.

use std::borrow::Cow;

use anyhow::Context;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, Implementation,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
        ToolAnnotations,
    },
    service::RequestContext,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
};

/// The arguments of a call.
pub(crate) type Arguments = Map<String, Value>;

/// How much of a message fits between the lines that are judged and the server, in bytes.
const PIPE: usize = 64 * 1024;
/// How many lines wait for standard output.
const QUEUED: usize = 16;

/// The remedy for wrong arguments.
pub(crate) const ARGUMENTS: &str = "correct the arguments by the tool's input schema";

/// An error for the agent: what is wrong and what to do about it.
#[derive(Debug)]
pub(crate) struct ToolError {
    pub(crate) error: String,
    /// What others said about it.
    pub(crate) reason: Option<Value>,
    pub(crate) remedy: Cow<'static, str>,
}

impl ToolError {
    pub(crate) fn new(error: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self {
            error: error.into(),
            reason: None,
            remedy: remedy.into(),
        }
    }
}

/// What a tool tells the agent.
pub(crate) type ToolResult = Result<Value, ToolError>;

/// A parameter: its name, its JSON type, and what it is for.
pub(crate) type Parameter = (&'static str, &'static str, &'static str);

/// A tool: its name, what it is for, its parameters, and those that must be given.
#[derive(Debug)]
pub(crate) struct ToolDescription {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) required: &'static [&'static str],
    /// Whether it changes anything.
    pub(crate) changes: bool,
}

impl ToolDescription {
    fn tool(&self) -> Tool {
        let property = |(name, kind, about): &Parameter| {
            let property = json!({ "type": kind, "description": about });
            ((*name).to_owned(), property)
        };
        let properties: Map<String, Value> = self.parameters.iter().map(property).collect();
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), json!(properties));
        schema.insert("required".to_owned(), json!(self.required));
        schema.insert("additionalProperties".to_owned(), json!(false));
        let hints = ToolAnnotations::new()
            .read_only(!self.changes)
            .destructive(self.changes)
            .idempotent(true);
        Tool::new(self.name, self.about, schema).with_annotations(hints)
    }

    /// The arguments as texts, without those that are null. An argument that the tool does not
    /// know, and one that is missing, is refused.
    pub(crate) fn texts(
        &self,
        arguments: &Arguments,
    ) -> Result<Vec<(&'static str, String)>, ToolError> {
        let unknown = arguments
            .keys()
            .find(|name| !self.parameters.iter().any(|(known, ..)| known == name));
        if let Some(name) = unknown {
            return Err(ToolError::new(
                format!("there is no argument {name:?}"),
                ARGUMENTS,
            ));
        }
        let mut texts = Vec::new();
        for (name, ..) in self.parameters {
            match arguments.get(*name) {
                None | Some(Value::Null) if self.required.contains(name) => {
                    return Err(ToolError::new(
                        format!("the argument {name:?} is missing"),
                        ARGUMENTS,
                    ));
                }
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => texts.push((*name, text.clone())),
                Some(other) => texts.push((*name, other.to_string())),
            }
        }
        Ok(texts)
    }
}

/// The tools of a program.
pub(crate) trait Tools: Send + Sync + 'static {
    /// The name of the program.
    const PROGRAM: &'static str;

    /// What an agent reads before it calls anything.
    fn instructions(&self) -> String;

    fn offers(&self) -> Vec<&'static ToolDescription>;

    /// Calls a tool. `name` may be anything.
    fn call(&self, name: &str, arguments: Arguments) -> impl Future<Output = ToolResult> + Send;
}

/// Serves one agent until it closes standard input.
pub(crate) async fn serve(tools: impl Tools) -> anyhow::Result<()> {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    let (from_server, to_server) = tokio::io::split(ours);
    let (say, said) = mpsc::channel(QUEUED);
    let serving = async {
        let serving = Server(tools).serve(tokio::io::split(theirs)).await;
        let serving = serving.context("the agent has not begun the protocol")?;
        serving.waiting().await?;
        Ok(())
    };
    let judging = judge(BufReader::new(tokio::io::stdin()), to_server, say.clone());
    let relaying = relay(BufReader::new(from_server), say);
    tokio::try_join!(serving, judging, relaying, write(said))?;
    Ok(())
}

/// Passes each good line of the agent on to the server, and answers the others.
async fn judge(
    mut agent: impl AsyncBufReadExt + Unpin,
    mut server: impl AsyncWrite + Unpin,
    say: mpsc::Sender<Vec<u8>>,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    while agent.read_until(b'\n', &mut line).await? > 0 {
        match judged(&line) {
            // The server has ended if it cannot be written to, and says why.
            Ok(()) if server.write_all(&line).await.is_err() => break,
            Ok(()) => {}
            Err(answer) => say.send(format!("{answer}\n").into_bytes()).await?,
        }
        line.clear();
    }
    let _ = server.shutdown().await;
    Ok(())
}

/// Passes the lines of the server on, whole, because [`judge`] writes between them.
async fn relay(
    mut server: BufReader<impl AsyncRead + Unpin>,
    say: mpsc::Sender<Vec<u8>>,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    while server.read_until(b'\n', &mut line).await? > 0 {
        say.send(std::mem::take(&mut line)).await?;
    }
    Ok(())
}

/// Writes what is said on standard output.
async fn write(mut said: mpsc::Receiver<Vec<u8>>) -> anyhow::Result<()> {
    let mut output = tokio::io::stdout();
    while let Some(line) = said.recv().await {
        output.write_all(&line).await?;
        output.flush().await?;
    }
    Ok(())
}

/// The answer to a line that is no message of the protocol, or whose tool cannot be called with its
/// arguments.
fn judged(line: &[u8]) -> Result<(), Value> {
    let fault = |id: &Value, code: ErrorCode, message: String, remedy: &str| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code.0, "message": message, "data": {"remedy": remedy}}});
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let message: Value = serde_json::from_slice(line).map_err(|error| {
        let message = format!("the line is not JSON: {error}");
        fault(
            &Value::Null,
            ErrorCode::PARSE_ERROR,
            message,
            "send each message as JSON in one line",
        )
    })?;
    let id = &message["id"];
    if !message.is_object() {
        let message = "the message is not a JSON object".to_owned();
        return Err(fault(
            id,
            ErrorCode::INVALID_REQUEST,
            message,
            "send one message in each line",
        ));
    }
    if message["method"] != "tools/call" {
        return Ok(());
    }
    let params = &message["params"];
    let wrong = if !params["name"].is_string() {
        "params.name is not a text"
    } else if !matches!(params["arguments"], Value::Null | Value::Object(_)) {
        "params.arguments is not a JSON object"
    } else {
        return Ok(());
    };
    let remedy =
        "name a tool of tools/list, and give its arguments as a JSON object, not as a text";
    Err(fault(
        id,
        ErrorCode::INVALID_PARAMS,
        wrong.to_owned(),
        remedy,
    ))
}

/// Reads arguments that have a type.
pub(crate) fn read<T: DeserializeOwned>(arguments: Arguments) -> Result<T, ToolError> {
    let read = serde_json::from_value(Value::Object(arguments));
    read.map_err(|error| ToolError::new(error.to_string(), ARGUMENTS))
}

struct Server<T>(T);

impl<T: Tools> ServerHandler for Server<T> {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(tools)
            .with_server_info(Implementation::new(T::PROGRAM, env!("CARGO_PKG_VERSION")))
            .with_instructions(self.0.instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self
            .0
            .offers()
            .into_iter()
            .map(ToolDescription::tool)
            .collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let result = match self.0.call(&request.name, arguments).await {
            Ok(json) => CallToolResult::structured(json),
            Err(ToolError {
                error,
                reason,
                remedy,
            }) => {
                let mut fault = json!({ "error": error, "remedy": remedy });
                if let Some(reason) = reason {
                    fault["reason"] = reason;
                }
                CallToolResult::structured_error(fault)
            }
        };
        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: ToolDescription = ToolDescription {
        name: "list",
        about: "A list",
        parameters: &[("id", "string", "the id"), ("limit", "integer", "how many")],
        required: &["id"],
        changes: false,
    };

    #[test]
    fn a_tool_says_what_it_takes_and_whether_it_changes_anything() {
        let tool = LIST.tool();
        assert_eq!(tool.input_schema["required"], json!(["id"]));
        assert_eq!(tool.input_schema["additionalProperties"], false);
        assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true));
    }

    #[test]
    fn a_line_that_is_no_message_gets_an_answer_with_a_remedy() {
        let judged = |line: &str| judged(line.as_bytes());
        let call = |arguments: Value| {
            let params = json!({"name": "account", "arguments": arguments});
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string()
        };
        for line in [
            "",
            "\n",
            &call(json!({})),
            &call(Value::Null),
            r#"{"id":1,"method":"later/added"}"#,
        ] {
            assert_eq!(judged(line), Ok(()), "{line}");
        }
        let unnamed = r#"{"id":7,"method":"tools/call","params":{}}"#.to_owned();
        for (line, code, id) in [
            ("{\"jsonrpc\":".to_owned(), -32700, Value::Null),
            ("hello".to_owned(), -32700, Value::Null),
            ("[]".to_owned(), -32600, Value::Null),
            (call(json!("{}")), -32602, json!(7)),
            (call(json!([])), -32602, json!(7)),
            (unnamed, -32602, json!(7)),
        ] {
            let answer = judged(&line).unwrap_err();
            assert_eq!(
                (&answer["error"]["code"], &answer["id"]),
                (&json!(code), &id),
                "{line}"
            );
            assert!(answer["error"]["data"]["remedy"].is_string(), "{answer}");
        }
    }

    #[test]
    fn only_known_arguments_are_taken_and_all_that_are_needed() {
        let texts = |arguments: Value| LIST.texts(arguments.as_object().unwrap());
        let good = texts(json!({"limit": 7, "id": "a b"})).unwrap();
        assert_eq!(good, [("id", "a b".to_owned()), ("limit", "7".to_owned())]);
        for (wrong, said) in [
            (json!({"id": "a", "since": "x"}), "since"),
            (json!({"limit": 1}), "id"),
            (json!({"id": null}), "id"),
        ] {
            assert!(texts(wrong).unwrap_err().error.contains(said));
        }
    }
}
