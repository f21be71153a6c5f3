//! What each phase makes for those after it. A phase is given what the one before it made, so that what is not there yet cannot be read.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use crds::{Failure, TerraformRun};

use super::{
    given_files::{self, GivenFile},
    options::Options,
    tool_integrity::VerifiedTool,
    variable_files::{self, VariablesFile},
};
use crate::{
    classify::internal,
    datastore::sealed_inputs::SealedInputs,
    plan_checksum::{Facts, Parts},
    providers::{Served, UserConfig},
};

/// What every command of the tool is run with.
#[derive(Clone, Debug)]
pub(super) struct Shell {
    /// The stack's directory.
    pub(super) stack: PathBuf,
    pub(super) tool: Arc<VerifiedTool>,
    pub(super) env: Vec<(OsString, OsString)>,
    /// The state is the datastore's.
    pub(super) managed: bool,
    /// Terragrunt has all values for `plan` alone, so that other commands run as a part of it.
    pub(super) as_plan: Arc<AtomicBool>,
    /// Providers in the run's mirror.
    pub(super) served: Arc<Vec<Served>>,
    /// What the run adds to the tool's CLI configuration.
    pub(super) user_config: Arc<UserConfig>,
    /// Further arguments of commands, as the run asks for them.
    pub(super) options: Arc<Options>,
    /// Variables as the tool's command line has them, where they are not beside the code.
    pub(super) variable_args: Arc<Vec<OsString>>,
    /// Files of Secrets and ConfigMaps for the tool.
    pub(super) files: Arc<Vec<GivenFile>>,
    /// Files with variables beside the code.
    pub(super) variables: Arc<Vec<VariablesFile>>,
}

impl Shell {
    /// Puts beside the code again what no checksum counts, so that nothing else would show that code of the stack has changed it: files of
    /// Secrets, and variables. A person's own folder is `in_place`, where nothing was put.
    pub(super) fn put_uncounted(&self, in_place: bool) -> Result<(), Failure> {
        if in_place {
            return Ok(());
        }
        given_files::put_apart_again(&self.files, &self.stack)?;
        variable_files::put(&self.variables, &self.stack)
    }
}

/// What Setup made: the source is there, and the tool.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) run: Arc<TerraformRun>,
    pub(super) shell: Shell,
    /// What the manifest says besides digests, but for the backend.
    pub(super) facts: Facts,
    /// What the plan takes from Secrets and ConfigMaps.
    pub(super) inputs: SealedInputs,
    /// The shared cache of providers, when there is one and code of the stack cannot write to it.
    pub(super) cache: Option<PathBuf>,
    /// What a person should know of what is given to the tool.
    pub(super) notes: Vec<String>,
}

/// What Init made: providers are there, and it is known where the state is.
#[derive(Clone, Debug)]
pub(super) struct Initialised {
    pub(super) run: Arc<TerraformRun>,
    /// In the run's workspace from here on.
    pub(super) shell: Shell,
    pub(super) facts: Facts,
    pub(super) inputs: SealedInputs,
    /// Key of the state; none where nobody gives leases on it.
    pub(super) state_key: Option<String>,
    /// Terragrunt ran nothing for `init`, as its configuration wants it, so that nobody knows yet where the state is.
    pub(super) idle: bool,
}

impl Initialised {
    /// With providers served, and before it is known where the state is.
    pub(super) fn of(prepared: &Prepared, shell: Shell) -> Self {
        let Prepared { run, facts, inputs, .. } = prepared;
        Self { run: run.clone(), shell, facts: facts.clone(), inputs: inputs.clone(), state_key: None, idle: false }
    }
}

/// What Plan made, or a plan of an earlier attempt that was taken to where it was made.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) run: Arc<TerraformRun>,
    pub(super) shell: Shell,
    pub(super) facts: Facts,
    pub(super) state_key: Option<String>,
    /// What the plan was made with and of, in digests; none where that was not kept.
    pub(super) parts: Option<Parts>,
    pub(super) operations: u32,
    /// It takes in what another run created.
    pub(super) recovers: bool,
}

impl Planned {
    pub(super) fn of(made: Initialised, parts: Option<Parts>, operations: u32) -> Self {
        let Initialised { run, shell, facts, state_key, .. } = made;
        Self { run, shell, facts, state_key, parts, operations, recovers: false }
    }
}

#[derive(Debug, Default)]
pub(super) enum Stage {
    /// It is not adopted.
    #[default]
    New,
    /// Setup is at it, or failed.
    Begun,
    Prepared(Arc<Prepared>),
    Initialised(Arc<Initialised>),
    Planned(Arc<Planned>),
}

impl Stage {
    pub(super) fn prepared(&self) -> Result<Arc<Prepared>, Failure> {
        match self {
            Self::Prepared(made) => Ok(made.clone()),
            _ => Err(out_of_turn("init")),
        }
    }

    pub(super) fn initialised(&self) -> Result<Arc<Initialised>, Failure> {
        match self {
            Self::Initialised(made) => Ok(made.clone()),
            _ => Err(out_of_turn("plan")),
        }
    }

    pub(super) fn planned(&self) -> Result<Arc<Planned>, Failure> {
        match self {
            Self::Planned(made) => Ok(made.clone()),
            _ => Err(out_of_turn("apply")),
        }
    }

    /// What commands are run with, once it is known.
    pub(super) fn shell(&self) -> Option<&Shell> {
        match self {
            Self::New | Self::Begun => None,
            Self::Prepared(made) => Some(&made.shell),
            Self::Initialised(made) => Some(&made.shell),
            Self::Planned(made) => Some(&made.shell),
        }
    }

    /// The stack's directory; empty before it is known.
    pub(super) fn stack(&self) -> &Path {
        self.shell().map_or(Path::new(""), |shell| &shell.stack)
    }
}

fn out_of_turn(step: &str) -> Failure {
    internal(&format!("{step} cannot be run"), &"the step before it has not ended well")
}
