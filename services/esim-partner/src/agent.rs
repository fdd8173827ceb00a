//! Tools for agents by the Model Context Protocol, over standard input and output. [`crate::mcp`] says
//! which tools there are.
//!
//! Guarantee: a tool is called only with arguments that are a JSON object, and an error always says what
//! to do about it. What a tool may change, and what it must not show, is decided by the tools.

use anyhow::Context;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The arguments of a call.
pub(crate) type Arguments = Map<String, Value>;

/// The remedy for wrong arguments.
pub(crate) const ARGUMENTS: &str = "correct the arguments by the tool's input schema";

/// An error for the agent: what is wrong and what to do about it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) error: String,
    pub(crate) remedy: &'static str,
}

impl Fault {
    pub(crate) fn new(error: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            error: error.into(),
            remedy,
        }
    }
}

/// What a tool tells the agent.
pub(crate) type Told = Result<Value, Fault>;

/// A parameter: its name, its JSON type, and what it is for.
pub(crate) type Parameter = (&'static str, &'static str, &'static str);

/// A tool: its name, what it is for, its parameters, and those that must be given.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) required: &'static [&'static str],
    /// Whether it changes anything.
    pub(crate) changes: bool,
}

impl Offer {
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

    /// The arguments as texts, without those that are null. An argument that the tool does not know,
    /// and one that is missing, is refused.
    pub(crate) fn texts(
        &self,
        arguments: &Arguments,
    ) -> Result<Vec<(&'static str, String)>, Fault> {
        let unknown = arguments
            .keys()
            .find(|name| !self.parameters.iter().any(|(known, ..)| known == name));
        if let Some(name) = unknown {
            return Err(Fault::new(
                format!("there is no argument {name:?}"),
                ARGUMENTS,
            ));
        }
        let mut texts = Vec::new();
        for (name, ..) in self.parameters {
            match arguments.get(*name) {
                None | Some(Value::Null) if self.required.contains(name) => {
                    return Err(Fault::new(
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

    fn offers(&self) -> Vec<&'static Offer>;

    /// Calls a tool. `name` may be anything.
    fn call(&self, name: &str, arguments: Arguments) -> impl Future<Output = Told> + Send;
}

/// Serves one agent until it closes standard input.
pub(crate) async fn serve(tools: impl Tools) -> anyhow::Result<()> {
    let serving = Server(tools).serve(rmcp::transport::stdio()).await;
    let serving = serving.context("the agent has not begun the protocol")?;
    serving.waiting().await?;
    Ok(())
}

/// Reads arguments that have a type.
pub(crate) fn read<T: DeserializeOwned>(arguments: Arguments) -> Result<T, Fault> {
    let read = serde_json::from_value(Value::Object(arguments));
    read.map_err(|error| Fault::new(error.to_string(), ARGUMENTS))
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
        let tools = self.0.offers().into_iter().map(Offer::tool).collect();
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
            Err(Fault { error, remedy }) => {
                CallToolResult::structured_error(json!({ "error": error, "remedy": remedy }))
            }
        };
        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Offer = Offer {
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
