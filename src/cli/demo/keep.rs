//! Handing a running mesh over to the user: contexts for every agent, and commands to copy.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::Folder;
use super::mesh::{Mesh, program};
use super::plan::{AGENTS, Agent, Fabric, REGION_A};
use super::story::Story;

/// The variable that names the folder of contexts.
const CONFIG_DIR: &str = "GLOCAL_CONFIG_DIR";

/// Ends the brokers, waits until they have gone and, unless the folder is the user's own, removes it. A process id is only
/// trusted while its command line still names this folder.
const STOP: &str = r#"#!/bin/sh
ours() { tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF "$dir"; }
for pid in $pids; do ours "$pid" && kill "$pid"; done
for pid in $pids; do while ours "$pid"; do sleep 0.1; done; done
"#;

/// Saves the contexts, leaves the brokers running and says what to do with them.
pub(super) fn hand_over(story: &mut Story, mesh: &mut Mesh, fabric: &Fabric, folder: &Folder) -> anyhow::Result<()> {
    let (program, dir) = (program()?, &folder.path);
    let contexts = dir.join("contexts");
    for agent in AGENTS {
        save(&program, &contexts, mesh, fabric, agent).with_context(|| format!("context of {}", agent.address()))?;
    }
    let socket = mesh.ready(REGION_A)?.socket.display().to_string();
    let pids: Vec<String> = mesh.keep().iter().map(ToString::to_string).collect();
    let (pids, stop) = (pids.join(" "), dir.join("stop.sh"));
    let (dir, contexts, program) = (dir.display(), contexts.display(), program.display());
    let (end, and_remove) = if folder.is_temporary() { ("rm -rf \"$dir\"\n", " and remove it") } else { ("", "") };
    let script = STOP.replacen('\n', &format!("\ndir='{dir}'\npids='{pids}'\n"), 1) + end;
    std::fs::write(&stop, script).with_context(|| format!("cannot write '{}'", stop.display()))?;
    let stop = format!("sh '{}'", stop.display());
    let commands = format!(
        "\nThe mesh is running. Try:\n  \
         export {CONFIG_DIR}='{contexts}'\n  \
         alias glocal='{program}'\n  \
         glocal sub --context anna 'orders.>'                # tenantA in region-b, in one terminal\n  \
         glocal pub --context alice orders.new hello         # tenantA in region-a, in another\n  \
         glocal pub --context bob orders.new hello           # tenantB: the same name, nothing arrives\n  \
         glocal sub --context bob 'T.tenantA.>'              # DENY\n  \
         glocal sub --context admin 'T.*.>'                  # the superuser sees both\n  \
         glocal status --socket '{socket}'\n  \
         tail -f '{dir}'/*.log\n\
         Stop it{and_remove} (processes {pids}):\n  \
         {stop}"
    );
    story.finale(&commands, &serde_json::json!({ "pids": pids, "contexts": contexts.to_string(), "stop": stop }))
}

fn save(program: &Path, contexts: &Path, mesh: &Mesh, fabric: &Fabric, agent: Agent) -> anyhow::Result<()> {
    let (cert, key) = fabric.identity(agent);
    let mut command = Command::new(program);
    command.args([
        "context",
        "add",
        agent.name,
        "--force",
        "--server",
        &mesh.ready(agent.node())?.native_tcp.to_string(),
    ]);
    command.arg("--root").arg(fabric.root()).arg("--cert").arg(cert).arg("--key").arg(key);
    let status = command.env(CONFIG_DIR, contexts).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "'glocal context add' ended with {status}");
    Ok(())
}
