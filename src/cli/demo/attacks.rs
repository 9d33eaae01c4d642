//! The attacks of the threat model that a single machine can try, each really tried; the numbers are the catalogue's.
//!
//! Every attack must be refused for its own reason: an attempt that fails in another way is a line that failed.

use anyhow::Context as _;
use bytes::BytesMut;
use glocal_client::{Headers, Publish, Scheme};
use glocal_core::deny::Deny;
use glocal_core::name::Class;
use glocal_fabric::pki::fingerprint;
use glocal_fabric::testing::{Forge, Forged, Oddity};
use glocal_node::trust::tls::{ALPN_BRIDGE, ALPN_NATIVE};
use glocal_wire::control::{BridgeHello, Control, Interest, PROTOCOL_VERSION, Ping, Subscribe};
use glocal_wire::data::{DataHead, DataKind};

use super::cast::Cast;
use super::mesh::Mesh;
use super::plan::{ALICE, ANNA, BERTA, BOB, Fabric, GLOBAL, OPERATOR, REGION_A, REGION_B, SUPERUSER, label, tenant};
use super::raw::{self, End, Shown};
use super::story::Story;
use super::traffic::{and_nobody_heard, expect, refused, refused_publish, refused_subscribe};

/// The metric of refused certificates.
const REFUSED: &str = "glocal_handshakes_refused";

/// Everything an attack needs.
struct Field<'a> {
    mesh: &'a Mesh,
    fabric: &'a Fabric,
    cast: &'a Cast,
    /// The CA of region-a, in the attacker's hands.
    ca_a: Forge,
    /// The CA of region-b, in the attacker's hands.
    ca_b: Forge,
}

/// Tries them all.
pub(super) async fn tell(story: &mut Story, mesh: &Mesh, fabric: &Fabric, cast: &Cast) -> anyhow::Result<()> {
    let ca = |region| anyhow::Ok(Forge::open(fabric.out(), &label(region)?)?);
    let field = Field { mesh, fabric, cast, ca_a: ca("region-a")?, ca_b: ca("region-b")? };
    story.section("Attacks: composite destinations (1, 2), a tenant inside the message (8)")?;
    field.names(story).await?;
    story.section("Attacks: a client that claims to be a bridge (3)")?;
    field.bridges(story).await?;
    story.section("Attacks: no certificate (7), odd certificates (9)")?;
    field.nobody(story).await?;
    field.odd(story).await?;
    story.section("Attacks: a stolen region CA issues what it may not (11), a decoy in the chain (19)")?;
    field.stolen_ca(story).await
}

/// Frames that a session must not survive or gain by, between a hello and a ping.
fn after_hello(name: &str, frames: impl FnOnce(&mut BytesMut) -> anyhow::Result<()>) -> anyhow::Result<BytesMut> {
    let mut sent = raw::frames(&[raw::hello(name)])?;
    frames(&mut sent)?;
    sent.extend_from_slice(&raw::frames(&[Ping { token: 1 }.into()])?);
    Ok(sent)
}

fn relay_frame(out: &mut BytesMut) -> anyhow::Result<()> {
    let head = DataHead { hops: 1, ..DataHead::new(DataKind::Relay, Some(Class::Live)) };
    head.encode_into(out, &[], b"demo.hello", b"", b"", b"as if I were a broker")?;
    Ok(())
}

fn interest_frame(out: &mut BytesMut) -> anyhow::Result<()> {
    let filter = ">".to_owned();
    let body = Interest { origin: 1, seq: 1, add: true, filter, classes: 15, queue: None, observer: true };
    Control::from(body).encode_into(out)?;
    Ok(())
}

fn bridge_hello() -> Control {
    let body = BridgeHello {
        versions: vec![PROTOCOL_VERSION],
        features: 0,
        fabric: "demo".to_owned(),
        node: REGION_A.to_owned(),
        incarnation: u64::MAX,
        edge: "edge-a".to_owned(),
        dial: 1,
        max_payload: 1 << 20,
        tenant_id_form: 0,
        bundle_epoch: 1,
        bundle_version: 1,
    };
    body.into()
}

impl Field<'_> {
    async fn names(&self, story: &mut Story) -> anyhow::Result<()> {
        let alice = self.cast.player(ALICE)?;
        let composite = "T.tenantA.live.demo.x,T.tenantB.live.demo.y";
        let written = async {
            let line = refused_publish(self.mesh, alice, composite, "composite-destination").await;
            and_nobody_heard(self.cast, line).await
        };
        story.attack(&format!(" 1 publish '{composite}'"), &written.await)?;
        let read = refused_subscribe(self.mesh, alice, composite, "composite-destination").await;
        story.attack(&format!(" 2 subscribe '{composite}'"), &read)?;
        let inside = self.tenant_inside().await;
        story.attack(" 8 header 'cresco_tenant: tenantB', body {\"tenant\":\"tenantB\"}", &inside)?;
        let reply = "T.tenantB.live.demo.reply".to_owned();
        let publish = Publish { ack: true, reply: Some(reply), ..Publish::new("demo.hello", "answer there") };
        let answered = async {
            let line = refused(self.mesh, alice, publish, "cross-tenant").await;
            and_nobody_heard(self.cast, line).await
        };
        story.attack(" 8 reply subject 'T.tenantB.live.demo.reply'", &answered.await)
    }

    /// What a message says of its tenant is its payload, and no more.
    async fn tenant_inside(&self) -> anyhow::Result<String> {
        let (mut headers, text) = (Headers::default(), r#"{"tenant":"tenantB"}"#);
        headers.add("cresco_tenant", "tenantB")?;
        let publish = Publish { headers, ..Publish::new("demo.hello", text) };
        self.cast.player(ALICE)?.publish(publish).await?;
        let message = self.cast.player(ANNA)?.hear().await?;
        expect(&message, "demo.hello", text, ALICE)?;
        anyhow::ensure!(message.headers().value("cresco_tenant") == Some("tenantB"), "the header was changed");
        self.cast.heard_nothing(BOB, BERTA).await?;
        self.cast.heard_nothing(BERTA, BOB).await?;
        Ok("not looked at: anna of tenantA got it as it is, bob and berta of tenantB nothing".to_owned())
    }

    async fn bridges(&self, story: &mut Story) -> anyhow::Result<()> {
        let alice = || raw::identity(self.fabric, ALICE);
        let hello = raw::frames(&[bridge_hello()])?;
        let uid = uid(&alice()?)?;
        let end =
            raw::dial(self.fabric, (Scheme::Quic, self.mesh.ready(GLOBAL)?.bridge), ALPN_BRIDGE, alice()?, &hello)
                .await;
        let refused = self.handshake(GLOBAL, &uid, end, Deny::ClientOnBridgePort).await;
        story.attack(" 3 alice's certificate on the bridge port, ALPN glocal-bridge/1", &refused)?;
        let client_port = self.mesh.ready(REGION_A)?.native_tcp;
        let refused = match raw::dial(self.fabric, (Scheme::Tls, client_port), ALPN_BRIDGE, alice()?, &hello).await? {
            End::Handshake { text, .. } if text.ends_with("NoApplicationProtocol") => {
                Ok(format!("no handshake: {text}"))
            }
            other => Err(unexpected(other)),
        };
        story.attack(" 3 ALPN glocal-bridge/1 on the client port", &refused)?;
        for (what, sent) in [
            ("BridgeHello instead of a hello", hello),
            ("a RELAY data frame after the hello", after_hello("demo", relay_frame)?),
            ("an Interest record after the hello", after_hello("demo", interest_frame)?),
        ] {
            story.attack(&format!(" 3 {what} on the client port"), &self.protocol_error(alice()?, &sent).await)?;
        }
        let sent = after_hello("role=node; tenant=cresco-system", |_| Ok(()))?;
        let end = raw::dial(self.fabric, (Scheme::Tls, client_port), ALPN_NATIVE, alice()?, &sent).await;
        story.attack(
            " 3 a hello that says role=node, tenant=cresco-system",
            &still_tenant(end, "tenantA", Some("alice")),
        )
    }

    /// Sends frames of brokers on a client port; the session must end, counted, with nothing routed.
    async fn protocol_error(&self, shown: Shown, sent: &[u8]) -> anyhow::Result<String> {
        let before = self.mesh.metric(REGION_A, "glocal_protocol_errors", "").await?;
        let at = self.mesh.ready(REGION_A)?.native_tcp;
        match raw::dial(self.fabric, (Scheme::Tls, at), ALPN_NATIVE, shown, sent).await? {
            End::Refused { code, text } if code == "unexpected-frame" => {
                self.mesh.metric_above(REGION_A, "glocal_protocol_errors", "", before).await?;
                let line = format!("DENY connection : {text} [{code}]");
                and_nobody_heard(self.cast, Ok(line)).await
            }
            other => Err(unexpected(other)),
        }
    }

    async fn nobody(&self, story: &mut Story) -> anyhow::Result<()> {
        let hello = after_hello(SUPERUSER, |_| Ok(()))?;
        let ready = self.mesh.ready(REGION_A)?;
        let failed = "glocal_handshakes_failed";
        for (what, at, alpn) in [
            ("TLS/TCP", (Scheme::Tls, ready.native_tcp), ALPN_NATIVE),
            ("QUIC", (Scheme::Quic, ready.native_quic), ALPN_NATIVE),
            ("QUIC on the bridge port", (Scheme::Quic, ready.bridge), ALPN_BRIDGE),
        ] {
            let refused = async {
                let before = self.mesh.metric(REGION_A, failed, "").await?;
                let end = raw::dial(self.fabric, at, alpn, None, &hello).await?;
                let End::Handshake { deny: Some(Deny::NoCertificate), text } = end else { return Err(unexpected(end)) };
                self.mesh.metric_above(REGION_A, failed, "", before).await?;
                Ok(deny_text(Deny::NoCertificate, &text))
            };
            story.attack(&format!(" 7 no certificate, name '{SUPERUSER}', over {what}"), &refused.await)?;
        }
        Ok(())
    }

    async fn odd(&self, story: &mut Story) -> anyhow::Result<()> {
        let (own, mallory) = (tenant("tenantA")?, label("mallory")?);
        for (what, oddity, reason) in [
            ("no O", Oddity::NoTenant, Deny::CertNoTenant),
            ("O=tenantA, O=cresco-system", Oddity::TwoTenants, Deny::CertAmbiguousTenant),
            ("O=cresco-system, O=tenantA", Oddity::TwoTenantsSwapped, Deny::CertAmbiguousTenant),
            ("O=tenantA as a BMPString", Oddity::BmpTenant, Deny::CertStringType),
            ("O=tenantA, NUL, x", Oddity::NulInTenant, Deny::CertBadTenant),
        ] {
            let forged = self.ca_a.leaf(&own, &mallory, oddity)?;
            story.attack(&format!(" 9 a certificate with {what}"), &self.client(REGION_A, &forged, reason).await)?;
        }
        let forged = self.ca_a.leaf(&own, &mallory, Oddity::CommaInName)?;
        let sent = after_hello("mallory", |out| {
            let filter = "T.*.>".to_owned();
            let body = Subscribe { sid: 1, filter, queue: None, local_only: false };
            Control::from(body).encode_into(out)?;
            Ok(())
        })?;
        let at = self.mesh.ready(REGION_A)?.native_tcp;
        let end = raw::dial(self.fabric, (Scheme::Tls, at), ALPN_NATIVE, raw::forged(&forged), &sent).await;
        let kept = match &end {
            Ok(End::Welcomed { denied, .. }) if denied != &["all-tenants"] => {
                Err(anyhow::anyhow!("ALLOWED: it reads 'T.*.>' (refused: {denied:?})"))
            }
            _ => still_tenant(end, "tenantA", None),
        };
        story.attack(" 9 CN='mallory,O=cresco-system', then subscribe 'T.*.>'", &kept)
    }

    async fn stolen_ca(&self, story: &mut Story) -> anyhow::Result<()> {
        let (a, b, mallory) = (label("region-a")?, label("region-b")?, label("mallory")?);
        let own = tenant("tenantA")?;
        for (what, forged) in [
            ("tenantD, which region-b alone may issue", self.ca_a.leaf(&tenant("tenantD")?, &mallory, Oddity::None)?),
            ("the superuser's tenant", self.ca_a.leaf(&tenant(SUPERUSER)?, &mallory, Oddity::None)?),
            ("an agent of tenantA in region-b", self.ca_a.leaf_in(&own, &b, &mallory, Oddity::None)?),
        ] {
            let refused = self.client(REGION_A, &forged, Deny::IssuerBinding).await;
            story.attack(&format!("11 region-a's CA signs {what}"), &refused)?;
        }
        let node = self.ca_a.leaf_in(&tenant(OPERATOR)?, &b, &label("broker-b")?, Oddity::NodeName)?;
        let (at, hello) = (self.mesh.ready(GLOBAL)?.bridge, raw::frames(&[bridge_hello()])?);
        let end = raw::dial(self.fabric, (Scheme::Quic, at), ALPN_BRIDGE, raw::forged(&node), &hello).await;
        let refused = self.handshake(GLOBAL, &uid(&raw::forged(&node))?, end, Deny::IssuerBinding).await;
        story.attack(&format!("11 region-a's CA signs the broker {REGION_B}"), &refused)?;
        for (what, forged, node) in [
            (
                "region-b's CA signs for region-a, with region-a's CA beside it",
                self.ca_b.decoy(&self.ca_a, &own, &mallory)?,
                REGION_A,
            ),
            (
                "region-a's CA signs tenantD, with region-b's CA beside it",
                self.ca_a.decoy(&self.ca_b, &tenant("tenantD")?, &mallory)?,
                REGION_B,
            ),
        ] {
            let refused = self.client(node, &forged, Deny::IssuerBinding).await;
            story.attack(&format!("19 {what}"), &refused)?;
        }
        let foreign = Forge::foreign(&label("demo")?, &a)?.leaf(&own, &mallory, Oddity::None)?;
        let refused = self.client(REGION_A, &foreign, Deny::CertUntrusted).await;
        story.attack("11 a CA of another fabric with the same names signs tenantA", &refused)
    }

    /// A client with a forged certificate must be refused at the handshake, over QUIC and over TLS/TCP, and counted both
    /// times under its reason.
    async fn client(&self, node: &str, forged: &Forged, reason: Deny) -> anyhow::Result<String> {
        let (ready, hello) = (self.mesh.ready(node)?, after_hello("mallory", |_| Ok(()))?);
        let (uid, label) = (uid(&raw::forged(forged))?, format!("reason=\"{}\"", reason.code()));
        let before = self.mesh.metric(node, REFUSED, &label).await?;
        let end =
            raw::dial(self.fabric, (Scheme::Quic, ready.native_quic), ALPN_NATIVE, raw::forged(forged), &hello).await;
        self.handshake(node, &uid, end, reason).await.context("over QUIC")?;
        let end =
            raw::dial(self.fabric, (Scheme::Tls, ready.native_tcp), ALPN_NATIVE, raw::forged(forged), &hello).await;
        let line = self.handshake(node, &uid, end, reason).await.context("over TLS/TCP")?;
        self.mesh.metric_above(node, REFUSED, &label, before + 1).await?;
        Ok(line)
    }

    /// The handshake must have failed, and the broker must have logged it for this certificate and this reason.
    async fn handshake(&self, node: &str, uid: &str, end: anyhow::Result<End>, reason: Deny) -> anyhow::Result<String> {
        let text = match end? {
            End::Handshake { text, .. } => text,
            other => return Err(unexpected(other)),
        };
        let line = self.mesh.log_line(node, &["handshake refused", uid]).await?;
        let wanted = format!("reason=\"{}\"", reason.code());
        anyhow::ensure!(line.contains(&wanted), "refused for another reason: {line}");
        Ok(deny_text(reason, &text))
    }
}

fn deny_text(reason: Deny, told: &str) -> String {
    format!("DENY connection : {} [{}]; {told}", reason.template(), reason.code())
}

fn uid(shown: &Shown) -> anyhow::Result<String> {
    let leaf = shown.as_ref().and_then(|(chain, _)| chain.first()).context("no certificate")?;
    Ok(fingerprint(leaf).uid())
}

/// What is wrong with an attempt that ended otherwise than by the refusal it must meet.
fn unexpected(end: End) -> anyhow::Error {
    match end {
        End::Welcomed { welcome, .. } => {
            anyhow::anyhow!("LET IN as tenant {}, role {}", welcome.tenant, welcome.role)
        }
        End::Refused { code, text } => anyhow::anyhow!("refused otherwise: {text} [{code}]"),
        End::Handshake { deny, text } => anyhow::anyhow!("refused otherwise: {text} {deny:?}"),
        End::Closed(text) => anyhow::anyhow!("ended otherwise: {text}"),
    }
}

/// A session that must be of its true tenant and nothing more.
fn still_tenant(end: anyhow::Result<End>, id: &str, agent: Option<&str>) -> anyhow::Result<String> {
    match end? {
        End::Welcomed { welcome, denied }
            if (welcome.tenant.as_str(), welcome.role.as_str(), welcome.agent.as_deref()) == (id, "TENANT", agent) =>
        {
            let name = welcome.agent.unwrap_or_else(|| "nameless".to_owned());
            let refused = denied.first().map_or_else(String::new, |code| format!("; DENY READ 'T.*.>' [{code}]"));
            Ok(format!("gains nothing: tenant {id}, role {}, {name}{refused}", welcome.role))
        }
        other => Err(unexpected(other)),
    }
}
