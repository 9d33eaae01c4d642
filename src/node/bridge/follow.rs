//! Following changes on a live bridge: what it carries, and which bundle its ends go by.
//!
//! It runs in the task of the control stream. Sets are applied before they are told, so that the peer never sends what is
//! not accepted yet; heads and sections are verified exactly as at the start before anything of them is believed.

use glocal_core::bundle::Piece;
use glocal_core::name::TenantId;
use glocal_engine::allowance::Allowance;
use glocal_engine::driver::{Change, Command};
use glocal_engine::gossip::{Arrival, Gossip};
use glocal_engine::link::Link;
use glocal_wire::bundle::Envelope;
use glocal_wire::control::{AllowedApplied, Control};

use super::control_stream::ControlStream;
use super::dedicated::TenantConnections;
use super::{Ended, own_macs};
use crate::context::Context;
use crate::edge_status::Failure;
use crate::reload::{BundleRefusal, Refused};
use crate::trust::{BundleFileError, Unsigned, section_piece, unix_now, verify_head};

/// Sections that are put in force together.
const PIECES: usize = 256;

/// What one bridge follows.
pub(super) struct Follower<'b> {
    context: &'b Context,
    link: &'b Link,
    connection: &'b quinn::Connection,
    allowance: Allowance,
    /// On a dedicated edge.
    tenants: Option<TenantConnections>,
    gossip: Gossip,
    pieces: Vec<Piece>,
    /// The bundle of ours for which the peer's claim of a newer one was believed for a moment.
    excused: Option<(u64, u64)>,
}

impl<'b> Follower<'b> {
    pub(super) fn new(
        context: &'b Context,
        link: &'b Link,
        connection: &'b quinn::Connection,
        allowance: Allowance,
        tenants: Option<TenantConnections>,
    ) -> Self {
        let gossip = Gossip::new(link.edge().name().clone(), context.clock.now());
        Self { context, link, connection, allowance, tenants, gossip, pieces: Vec::new(), excused: None }
    }

    /// Waits until there is something to do for the tenants' connections. Cancel-safe.
    pub(super) fn stirred(&self) -> impl Future<Output = ()> + use<> {
        let wake = self.tenants.as_ref().map(|tenants| (tenants.stir(), tenants.wake_at()));
        let clock = self.context.clock;
        async move {
            match wake {
                Some((stir, Some(at))) => tokio::select! {
                    () = stir.notified() => {}
                    () = tokio::time::sleep_until(clock.instant(at)) => {}
                },
                Some((stir, None)) => stir.notified().await,
                None => std::future::pending().await,
            }
        }
    }

    /// The peer has said that it is ready: it takes the tenants' connections in.
    pub(super) fn peer_is_ready(&mut self) {
        if let Some(tenants) = &mut self.tenants {
            tenants.peer_is_ready();
            tenants.arrange(&self.allowance.sends(), &self.allowance.accepts());
        }
    }

    /// Ends the tenants' connections; returns when nothing of them is read any more.
    pub(super) async fn end(self) {
        if let Some(tenants) = self.tenants {
            tenants.end().await;
        }
    }

    /// Takes what has happened to the tenants' connections: routing follows before anybody is let in, and before the place
    /// of one that has gone is given to the next.
    pub(super) async fn follow_tenants(&mut self) {
        let accepts = self.allowance.accepts();
        loop {
            let Some(tenants) = &mut self.tenants else { return };
            if tenants.gather(&accepts) {
                self.apply(None).await;
            }
            if !self.tenants.as_mut().is_some_and(TenantConnections::start) {
                return;
            }
        }
    }

    /// The link of the bridge.
    pub(super) const fn link(&self) -> &'b Link {
        self.link
    }

    /// Bundle or configuration may have changed: what differs is applied, then told.
    pub(super) async fn look(&mut self, control: &mut ControlStream) -> Result<(), Ended> {
        let context = self.context;
        self.flush().await;
        let revision = context.shared.policy().epoch();
        let own = own_macs(context, self.link, self.connection)?;
        let frames = self.allowance.change(own, context.shared.bundle(), revision);
        if !frames.is_empty() {
            self.apply(None).await;
        }
        for frame in frames {
            control.send(&frame.into()).await?;
        }
        self.follow_tenants().await;
        let (holding, now) = (context.reloader.holding(), context.clock.now());
        self.gossip.look(&holding, configured(context, self.link), now);
        Ok(())
    }

    /// Takes a frame of the peer; gives it back when it is not about changes.
    pub(super) async fn on_frame(
        &mut self,
        frame: Control,
        control: &mut ControlStream,
    ) -> Result<Option<Control>, Ended> {
        let (context, now) = (self.context, self.context.clock.now());
        let holding = context.reloader.holding();
        let fault = |error: glocal_engine::gossip::GossipFault| Ended::new(Failure::Fault, error);
        match frame {
            Control::AllowedUpdate(frame) => {
                if let Some(arrived) = self.allowance.on_update(frame, now)? {
                    let level = arrived.bundle == context.shared.bundle();
                    self.apply(level.then_some(())).await;
                    control.send(&AllowedApplied { generation: arrived.generation }.into()).await?;
                }
            }
            Control::AllowedApplied(frame) => {
                if self.allowance.on_applied(&frame) {
                    self.apply(None).await;
                }
            }
            Control::BundleNews(news) => {
                self.gossip.on_news(news, &holding, now);
                let ours = context.shared.bundle();
                if self.gossip.is_behind(&holding) && self.excused != Some(ours) {
                    // Once for each bundle of ours: a liar gains a moment.
                    self.excused = Some(ours);
                    self.link.edge().excuse(now);
                }
                self.gossip.look(&holding, configured(context, self.link), now);
            }
            Control::SectionOffer(offer) => self.gossip.on_offer(&offer, &holding, now),
            Control::BundleGet(get) => self.gossip.on_get(get).map_err(fault)?,
            Control::BundlePart(part) => {
                if let Some(arrival) = self.gossip.on_part(part, now).map_err(fault)? {
                    self.on_arrival(arrival).await;
                }
                if self.gossip.is_quiet() || self.pieces.len() >= PIECES {
                    self.flush().await;
                }
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// What is to be sent next about bundles.
    pub(super) fn next(&mut self) -> Option<Control> {
        let configured = configured(self.context, self.link);
        self.gossip.next(&self.context.reloader.holding(), configured)
    }

    pub(super) fn has_next(&self) -> bool {
        self.gossip.has_next()
    }

    /// Puts both sets in force here; where the peer goes by our bundle, what it could not place is told again.
    async fn apply(&mut self, level: Option<()>) {
        let edge = self.link.edge().key();
        let (mut sends, mut accepts, now) =
            (self.allowance.sends(), self.allowance.accepts(), self.context.clock.now());
        if let Some(tenants) = &mut self.tenants {
            tenants.arrange(&sends, &accepts);
            (sends, accepts) = (tenants.carried(&sends), tenants.carried(&accepts));
        }
        let mut commands = vec![Command::Change(Change::Edge { edge, sends, accepts, now })];
        commands.extend(level.map(|()| Command::Change(Change::PeerHasBundle { edge })));
        self.context.control.apply(commands).await;
    }

    async fn on_arrival(&mut self, arrival: Arrival) {
        let Arrival { digest, is_head, bytes } = arrival;
        let from = self.link.edge().peer().to_string();
        if is_head {
            if !self.on_head(&bytes, digest, &from).await {
                self.gossip.reject(digest);
            }
            return;
        }
        match self.on_section(bytes, digest) {
            Ok(piece) => self.pieces.push(piece),
            Err(refused) => self.context.reloader.refusals.record(&refused, &from, self.context.clock.now()),
        }
    }

    /// Whether the head was taken.
    async fn on_head(&self, bytes: &[u8], digest: [u8; 32], from: &str) -> bool {
        let (context, trust) = (self.context, self.context.trust());
        let config = context.config();
        let verified = Envelope::decode(bytes).map_err(BundleFileError::from).and_then(|envelope| {
            let unsigned = Unsigned {
                certificate: envelope.bundle_key_cert.into(),
                head: envelope.head.into(),
                signature: envelope.signature.into(),
            };
            verify_head(unsigned, trust.configured_roots(), config.bundle_min_version, unix_now())
        });
        match verified {
            Ok(signed) if signed.digest == digest => {
                context.reloader.offer(context, signed, Vec::new(), false, from).await.is_ok()
            }
            Ok(_) => {
                let refused = Refused::new(BundleRefusal::Malformed, "not the head that was asked for");
                context.reloader.refusals.record(&refused, from, context.clock.now());
                false
            }
            Err(error) => {
                let refused = Refused::new(BundleRefusal::of_file(&error), error);
                context.reloader.refusals.record(&refused, from, context.clock.now());
                false
            }
        }
    }

    /// A section that the head in force lists and that may cross this edge.
    fn on_section(&self, bytes: bytes::Bytes, digest: [u8; 32]) -> Result<Piece, Refused> {
        let holding = self.context.reloader.holding();
        let piece = section_piece(&holding.signed().head, bytes)
            .map_err(|error| Refused::new(BundleRefusal::of_file(&error), error))?
            .filter(|piece| piece.digest == digest)
            .ok_or_else(|| Refused::new(BundleRefusal::Section, "a section that the head does not list"))?;
        let edge = self.link.edge().name();
        if !holding.admits(&piece, edge, configured(self.context, self.link)(&piece.section.tenant)) {
            return Err(Refused::new(BundleRefusal::Section, format!("a section that edge '{edge}' may not carry")));
        }
        Ok(piece)
    }

    /// Puts the sections that have come in force, together.
    async fn flush(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        let from = self.link.edge().peer().to_string();
        // What is refused is counted and logged there.
        let _ = self.context.reloader.add(self.context, std::mem::take(&mut self.pieces), &from).await;
    }
}

/// Which tenants local configuration allows on the edge.
fn configured(context: &Context, link: &Link) -> impl Fn(&TenantId) -> bool + use<> {
    let config = context.config();
    let place = config.edges.iter().position(|edge| edge.name == *link.edge().name());
    move |tenant| place.and_then(|place| config.edges.get(place)).is_some_and(|edge| edge.tenants.matches(tenant))
}
