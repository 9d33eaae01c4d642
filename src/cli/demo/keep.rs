//! Handing a running mesh over to the user: contexts for every agent, and commands to copy.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::mesh::Mesh;
use super::plan::{AGENTS, Agent, Fabric, REGION_A};
use super::story::Story;

/// The variable that names the folder of contexts.
const CONFIG_DIR: &str = "GLOCAL_CONFIG_DIR";

/// Saves the contexts, leaves the brokers running and says what to do with them.
pub(super) fn hand_over(story: &mut Story, mesh: &mut Mesh, fabric: &Fabric, dir: &Path) -> anyhow::Result<()> {
    let (program, contexts) = (std::env::current_exe()?, dir.join("contexts"));
    for agent in AGENTS {
        save(&program, &contexts, mesh, fabric, agent).with_context(|| format!("context of {}", agent.address()))?;
    }
    let socket = mesh.ready(REGION_A)?.socket.display().to_string();
    let pids: Vec<String> = mesh.keep().iter().map(ToString::to_string).collect();
    let (pids, dir, contexts, program) = (pids.join(" "), dir.display(), contexts.display(), program.display());
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
         Stop it and remove it:\n  \
         kill {pids} && rm -r '{dir}'"
    );
    story.finale(
        &commands,
        &serde_json::json!({ "pids": pids, "dir": dir.to_string(), "contexts": contexts.to_string() }),
    )
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
