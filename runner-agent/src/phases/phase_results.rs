//! The results of each phase. A phase takes the result of the previous one, so it cannot read data that does not exist yet.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use crds::{Changes, Failure, TerraformRun, datastore::LastState};
use serde_json::{Map, Value};

use super::{
    given_files::{self, GivenFile},
    options::Options,
    tool_integrity::VerifiedTool,
    variable_files::{self, VariablesFile},
};
use crate::{
    classify::internal,
    plan_checksum::{Facts, Parts},
    providers::{Installation, Served, UserConfig},
    sealed_inputs::SealedInputs,
};

/// The context of every command of the tool.
#[derive(Clone, Debug)]
pub(super) struct Shell {
    pub(super) stack: PathBuf,
    pub(super) tool: Arc<VerifiedTool>,
    pub(super) env: Vec<(OsString, OsString)>,
    /// The datastore stores the state.
    pub(super) managed: bool,
    /// The file with the run's own backend.
    pub(super) backend: Option<PathBuf>,
    /// Terragrunt has all input values only for `plan`, so other commands run as part of it.
    pub(super) as_plan: Arc<AtomicBool>,
    /// Whether a plan may be applied after a change of its inputs.
    pub(super) rotates: bool,
    /// Providers in the run's mirror.
    pub(super) served: Arc<Vec<Served>>,
    /// Where `init` takes providers from.
    pub(super) installation: Arc<Installation>,
    /// The run's additions to the tool's CLI configuration.
    pub(super) user_config: Arc<UserConfig>,
    /// Additional arguments that the run sets.
    pub(super) options: Arc<Options>,
    /// Variables of a person's folder, where no files are written beside the code.
    pub(super) variable_args: Arc<Vec<OsString>>,
    /// The variables that are texts of Secrets and ConfigMaps.
    pub(super) texts: Arc<BTreeMap<String, String>>,
    /// Files of Secrets and ConfigMaps for the tool.
    pub(super) files: Arc<Vec<GivenFile>>,
    /// Variable files beside the code.
    pub(super) variables: Arc<Vec<VariablesFile>>,
    /// Where the files of `variables` are for a person's folder, in which nothing is written.
    pub(super) variables_dir: Option<PathBuf>,
}

impl Shell {
    /// The arguments of a command, with the run's variables if it evaluates any. Terragrunt puts its own before these, and so do the
    /// tool's variables (`TF_CLI_ARGS_…`): what a person gave is last and wins.
    pub(super) fn with_variables(&self, mut args: Vec<OsString>) -> Vec<OsString> {
        let name = args.first().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if !self.tool.found.takes_variables(name) {
            return args;
        }
        // Options end before a file or an ID.
        let is_named = matches!(name, "show" | "apply" | "force-unlock");
        let at = args.len() - usize::from(is_named && args.len() > 1);
        let beside = self
            .variables
            .iter()
            .filter(|_| self.variables_dir.is_none());
        let files = beside.map(|file| {
            let mut word = OsString::from("-var-file=");
            word.push(self.stack.join(&file.name));
            word
        });
        let all: Vec<_> = files.chain(self.variable_args.iter().cloned()).collect();
        args.splice(at..at, all);
        args
    }

    /// The values of the run that the tool reads last. None in a person's folder, where arguments follow them.
    pub(super) fn own_values(&self) -> Map<String, Value> {
        let is_last = self.variables_dir.is_none() && self.variable_args.is_empty();
        let mut own = self.variables.iter().filter(|_| is_last);
        own.find_map(variable_files::VariablesFile::values)
            .unwrap_or_default()
    }

    /// Writes the files again that no checksum covers (files of Secrets, and variables), since a change by the stack's code would go
    /// unnoticed. Does nothing in a person's own folder, where no files were written.
    pub(super) fn put_uncounted(&self) -> Result<(), Failure> {
        if self.variables_dir.is_some() {
            return Ok(());
        }
        given_files::put_apart_again(&self.files, &self.stack)?;
        variable_files::put(&self.variables, &self.stack)
    }
}

/// Result of Setup: the source and the tool are available.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) run: Arc<TerraformRun>,
    pub(super) shell: Shell,
    /// The manifest's facts, without digests and backend.
    pub(super) facts: Facts,
    /// The plan's inputs from Secrets and ConfigMaps.
    pub(super) inputs: SealedInputs,
    /// The shared provider cache, if there is one that the stack's code cannot write to.
    pub(super) cache: Option<PathBuf>,
    /// Notes about the inputs for the log.
    pub(super) notes: Vec<String>,
}

/// Result of Init: providers are available and the state's place is known.
#[derive(Clone, Debug)]
pub(super) struct Initialised {
    pub(super) run: Arc<TerraformRun>,
    /// In the run's workspace from here on.
    pub(super) shell: Shell,
    pub(super) facts: Facts,
    pub(super) inputs: SealedInputs,
    /// Key of the state's lease; `None` where there are no leases.
    pub(super) state_key: Option<String>,
    /// By its configuration, Terragrunt ran nothing for `init`, so the state's backend is still unknown.
    pub(super) idle: bool,
}

impl Initialised {
    /// The initial value: providers are available, the state's place is not known yet.
    pub(super) fn of(prepared: &Prepared, shell: Shell) -> Self {
        let Prepared {
            run, facts, inputs, ..
        } = prepared;
        Self {
            run: run.clone(),
            shell,
            facts: facts.clone(),
            inputs: inputs.clone(),
            state_key: None,
            idle: false,
        }
    }
}

/// Result of Plan, or a plan of an earlier attempt that was restored.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) run: Arc<TerraformRun>,
    pub(super) shell: Shell,
    pub(super) facts: Facts,
    pub(super) state_key: Option<String>,
    /// Digests of the plan and its inputs; `None` where they were not stored.
    pub(super) parts: Option<Parts>,
    pub(super) counts: Changes,
    /// The state that the plan was made from, where it was read.
    pub(super) state: Option<LastState>,
    /// The plan imports objects that another run created.
    pub(super) recovers: bool,
}

impl Planned {
    pub(super) fn of(made: Initialised, parts: Option<Parts>, counts: Changes) -> Self {
        let Initialised {
            run,
            shell,
            facts,
            state_key,
            ..
        } = made;
        Self {
            run,
            shell,
            facts,
            state_key,
            parts,
            counts,
            state: None,
            recovers: false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Not adopted yet.
    #[default]
    New,
    /// Setup is running or has failed.
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

    /// The context of commands, once known.
    pub(super) fn shell(&self) -> Option<&Shell> {
        match self {
            Self::New | Self::Begun => None,
            Self::Prepared(made) => Some(&made.shell),
            Self::Initialised(made) => Some(&made.shell),
            Self::Planned(made) => Some(&made.shell),
        }
    }

    /// The stack's directory; empty while unknown.
    pub(super) fn stack(&self) -> &Path {
        self.shell().map_or(Path::new(""), |shell| &shell.stack)
    }
}

fn out_of_turn(step: &str) -> Failure {
    internal(
        &format!("{step} cannot be run"),
        &"the step before it has not ended well",
    )
}
