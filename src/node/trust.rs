//! Trust: roots, the signed bundle, certificate verification, and TLS configurations made from them.
