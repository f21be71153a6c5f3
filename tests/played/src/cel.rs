//! Evaluates CEL expressions like the API server.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, Program, Value as Found,
    common::{
        types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString},
        value::Val,
    },
    extensions,
};
use serde_json::Value;

/// CEL functions. If an extension is missing, a rule that calls one of its functions refuses every write, without an error here.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    drop(env.add_extension(extensions::strings));
    Arc::new(env)
});

/// Parses an expression.
///
/// # Errors
/// The expression and the parse error.
pub fn compile(expression: &str) -> Result<Program, String> {
    ENV.compile(expression)
        .map_err(|error| format!("`{expression}`: {error}"))
}

/// An evaluation context. The variables are borrowed.
pub fn context<'v>(variables: &[(&str, &'v Value)]) -> Context<'v, 'v> {
    let mut context = Context::with_env(ENV.clone());
    for (name, value) in variables {
        context.add_variable_as_val(*name, val(value));
    }
    context
}

/// Whether an expression is true.
///
/// # Errors
/// The evaluation error.
pub fn is_true(program: &Program, context: &Context) -> Result<bool, String> {
    match program.execute(context) {
        Ok(Found::Bool(is)) => Ok(is),
        Ok(other) => Err(format!("{other:?} is neither true nor false")),
        Err(error) => Err(error.to_string()),
    }
}

/// Converts JSON to CEL. Drops null members, as the API server does before it evaluates rules.
fn val(json: &Value) -> Box<dyn Val + '_> {
    match json {
        Value::Null => Box::new(CelNull),
        Value::Bool(is) => Box::new(CelBool::from(*is)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Box::new(CelInt::from(whole)),
            None => Box::new(CelDouble::from(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(all) => Box::new(CelList::from(all.iter().map(val).collect::<Vec<_>>())),
        Value::Object(all) => {
            let members = all.iter().filter(|(_, value)| !value.is_null());
            Box::new(CelMap::from(
                members
                    .map(|(key, value)| (CelMapKey::from(key.as_str()), val(value)))
                    .collect::<HashMap<_, _>>(),
            ))
        }
    }
}
