//! The provider cache as runs use it: many in parallel, and an attempt whose code tries to write to it. `tests/local/providers.rs` tests it
//! with the real tools.

use std::{
    fs,
    io::Read,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::common::{PATIENCE, start_with};
use crds::RunResult;
use runner_agent::providers::{Cache, H1, LOCK_FILE, Lock};
use serde_json::json;
use tool_versions::{Digest, Platform};

/// Creates a package; returns its hash.
fn package(dir: &Path, size: usize) -> H1 {
    fs::create_dir_all(dir).unwrap();
    let mut program = vec![0; 20];
    fs::File::open("/proc/self/exe")
        .unwrap()
        .read_exact(&mut program)
        .unwrap();
    program.resize(20 + size, b'x');
    let files = [
        ("terraform-provider-one_v1.2.3", program),
        ("LICENSE.txt", b"licence".to_vec()),
    ];
    for (name, content) in &files {
        fs::write(dir.join(name), content).unwrap();
        fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    H1::of(
        files
            .iter()
            .map(|(name, content)| (*name, Digest::of(content))),
    )
}

fn lock_file(h1: &H1) -> String {
    format!(
        "provider \"registry.opentofu.org/acme/one\" {{\n  version = \"1.2.3\"\n  hashes = [\"{h1}\"]\n}}\n"
    )
}

fn installed() -> PathBuf {
    Path::new("registry.opentofu.org/acme/one/1.2.3").join(Platform::here().to_string())
}

#[test]
fn twenty_parallel_runs_get_whole_packages() {
    crate::common::alone();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cache");
    let (begin, size) = (Barrier::new(20), 3 << 20);
    let (served, kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Runs until everything has happened.
    let enough = || served.load(Ordering::Relaxed) > 20 && kept.load(Ordering::Relaxed) > 1;
    let run = |number: u64| {
        let stack = dir.path().join(number.to_string());
        let (data, mirror) = (stack.join(".terraform"), stack.join("mirror"));
        let h1 = package(&data.join("providers").join(installed()), size);
        fs::write(stack.join(LOCK_FILE), lock_file(&h1)).unwrap();
        let (cache, lock) = (Cache::at(&root), Lock::of(&stack).unwrap());
        begin.wait();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) || !enough() && begun.elapsed() < PATIENCE {
            let serving = cache.serve(&lock, &mirror);
            assert_eq!(serving.notes, Vec::<String>::new());
            if !serving.served.is_empty() {
                served.fetch_add(1, Ordering::Relaxed);
                // A served package is complete, whatever other runs do.
                let link = mirror.join(installed());
                for _ in 0..3 {
                    assert_eq!(
                        fs::metadata(link.join("terraform-provider-one_v1.2.3"))
                            .unwrap()
                            .len(),
                        20 + size as u64
                    );
                    assert_eq!(
                        fs::read_to_string(link.join("LICENSE.txt")).unwrap(),
                        "licence"
                    );
                }
            }
            drop(serving);
            if number < 4 {
                cache
                    .prune(0, SystemTime::now() + Duration::from_secs(60))
                    .unwrap();
            }
            let keeping = cache.keep(&lock, &data, &|| false);
            assert_eq!(keeping.notes, Vec::<String>::new());
            kept.fetch_add(keeping.kept.len(), Ordering::Relaxed);
            // Leaves moments in which no run uses it.
            thread::sleep(Duration::from_millis(10 + number));
        }
    };
    let run = &run;
    thread::scope(|scope| {
        let runs: Vec<_> = (0..20)
            .map(|number| scope.spawn(move || run(number)))
            .collect();
        for run in runs {
            run.join().unwrap();
        }
    });
    assert!(enough(), "served {served:?} times, kept {kept:?} times");
    assert_eq!(fs::read_dir(root.join(".aside")).unwrap().count(), 0);
}

#[tokio::test]
async fn installed_provider_is_served_to_later_attempts() {
    let shared = tempfile::tempdir().unwrap();
    let (cache, from) = (shared.path().join("cache"), shared.path().join("package"));
    let h1 = package(&from, 1000);
    let more = json!({"source": {"inline": {"files": {"main.tf": "# nothing", ".terraform.lock.hcl": lock_file(&h1)}}}});
    let place = format!(".terraform/providers/{}", installed().display());
    // Installs providers from the mirror as the tool does, by a link or a copy. Then plants files for other runs, as malicious code would.
    let init = format!(
        "cp $TF_CLI_CONFIG_FILE config; mkdir -p {place}; m=$(sed -n 's/.*path *= \"\\(.*\\)\"/\\1/p' config); \
         if [ \"$m\" ]; then rm -r {place}; ln -s $(readlink $m/{installed}) {place}; else cp $FROM/* {place}; fi; \
         for f in $(find $CACHE) $CACHE/new; do echo evil > $f; rm -f $f; done 2>/dev/null; true",
        installed = installed().display()
    );
    let (from, root) = (from.display().to_string(), cache.display().to_string());
    let env = [("INIT", init.as_str()), ("FROM", &from), ("CACHE", &root)];
    let name = "registry.opentofu.org/acme/one";
    let mut logs = Vec::new();
    for attempt in 1..=3 {
        let mut a = start_with(&more, &env, |settings, _| {
            settings.provider_cache = Some(cache.clone());
        });
        assert_eq!(a.end().await, 0);
        assert_eq!(
            a.api.status().result,
            Some(RunResult::Applied),
            "{}",
            a.log()
        );
        if a.log().contains("this node has no Landlock") {
            assert!(std::env::var_os("CI").is_none(), "{}", a.log());
            return;
        }
        logs.push(a.log());
        let config = fs::read_to_string(a.stack().join("config")).unwrap_or_default();
        assert!(
            config.is_empty() || attempt > 1 || !config.contains(name),
            "{config}"
        );
    }
    let kept = format!("pawl: kept in the cache of providers: {name} 1.2.3\n");
    let served = format!("pawl: from the cache of providers: {name} 1.2.3\n");
    assert!(
        logs[0].contains(&kept) && !logs[0].contains(&served),
        "{}",
        logs[0]
    );
    for log in &logs[1..] {
        assert!(log.contains(&served) && !log.contains(&kept), "{log}");
    }
    // No file was planted.
    assert!(!cache.join("new").exists());
    let stack = shared.path().join("stack");
    fs::create_dir(&stack).unwrap();
    fs::write(stack.join(LOCK_FILE), lock_file(&h1)).unwrap();
    let serving = Cache::at(&cache).serve(&Lock::of(&stack).unwrap(), &stack.join("mirror"));
    assert_eq!(
        (serving.served.len(), serving.notes.len()),
        (1, 0),
        "{serving:?}"
    );
}

#[tokio::test]
async fn unusable_cache_fails_no_run() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    symlink("/not/there", dir.path().join("link")).unwrap();
    for name in ["file/cache", "file", "link"] {
        let mut a = start_with(&json!({}), &[], |settings, _| {
            settings.provider_cache = Some(dir.path().join(name));
        });
        assert_eq!(a.end().await, 0);
        assert!(
            a.log()
                .contains("pawl: the cache of providers cannot be used: "),
            "{name}: {}",
            a.log()
        );
    }
    // A cache below the work directory would break the attempt.
    let mut a = start_with(&json!({}), &[], |settings, _| {
        settings.provider_cache = Some(settings.work.join("cache"));
    });
    assert_eq!(a.end().await, 0);
    assert!(a.log().contains("lie in each other"), "{}", a.log());
    // An invalid lock file is left to the tool.
    let more = json!({"source": {"inline": {"files": {"main.tf": "", ".terraform.lock.hcl": "provider {"}}}});
    let mut a = start_with(&more, &[], |settings, _| {
        settings.provider_cache = Some(dir.path().join("cache"));
    });
    assert_eq!(a.end().await, 0);
    assert!(
        a.log().contains("the lock file cannot be read: line 1"),
        "{}",
        a.log()
    );
}
