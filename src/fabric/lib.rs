//! Fabric plans, certificates and signed bundles of the Glocal mesh.
