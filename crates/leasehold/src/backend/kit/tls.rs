//! What a client needs for TLS: whom to trust, who it is. Each error names its file and option.

use std::error::Error as StdError;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::url::TlsFiles;
use crate::error::{Error, ErrorKind, Result};

/// The cryptography that the program has chosen, or ours. Nothing is installed for the process:
/// another crate may have brought a second provider.
pub(in crate::backend) fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// A client that verifies its servers.
pub(in crate::backend) fn client(files: &TlsFiles) -> Result<Arc<ClientConfig>> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots(files.ca.as_deref(), "ca")?);
    let Some((cert, key)) = files.identity()? else {
        return Ok(Arc::new(config.with_no_client_auth()));
    };
    let read_key = PrivateKeyDer::from_pem_slice(&read(&key, "key")?);
    let read_key = read_key.map_err(|error| unusable(&key, "key", error))?;
    let config = config.with_client_auth_cert(certificates(&cert, "cert")?, read_key);
    let config = config.map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        let message = format!("{key} (key=) does not fit the certificate in {cert} (cert=)");
        Error::invalid(format!("{message}: {error}")).caused_by(error)
    })?;
    Ok(Arc::new(config))
}

/// The certificates of authorities in this file, which an option names, or those of the machine.
pub(in crate::backend) fn roots(file: Option<&Path>, option: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in certificates(path, option)? {
                roots.add(certificate).map_err(|error| unusable(path, option, error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let message = "this machine has no root certificate to verify the server by: name one with";
        return Err(Error::new(ErrorKind::Refused, format!("{message} {option}=FILE")));
    }
    Ok(roots)
}

fn certificates(path: &Path, option: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path, option)?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| unusable(path, option, error))?;
    if certificates.is_empty() {
        let message = format!("{} ({option}=) has no certificate in PEM form", path.display());
        return Err(Error::invalid(message));
    }
    Ok(certificates)
}

fn read(path: &Path, option: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        let message = format!("cannot read {} ({option}=): {error}", path.display());
        Error::invalid(message).caused_by(error)
    })
}

fn unusable(path: &Path, option: &str, error: impl StdError + Send + Sync + 'static) -> Error {
    let message = format!("{} ({option}=) cannot be used: {error}", path.display());
    Error::invalid(message).caused_by(error)
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, generate_simple_self_signed};

    use super::*;

    #[test]
    fn files_that_are_of_no_use_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let own = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        file("cert", &own.cert.pem());
        file("key", &own.signing_key.serialize_pem());
        file("other", &KeyPair::generate().unwrap().serialize_pem());
        file("text", "this is no PEM");
        file("torn", "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n");
        let config = |names: [&str; 3]| {
            let mut files = TlsFiles::default();
            for (option, name) in ["ca", "cert", "key"].into_iter().zip(names) {
                files.take(option, folder.path().join(name).to_str().unwrap());
            }
            client(&files)
        };
        assert!(config(["cert", "cert", "key"]).is_ok());
        for (names, file, why) in [
            (["missing", "cert", "key"], "missing (ca=)", "cannot read"),
            (["text", "cert", "key"], "text (ca=)", "no certificate in PEM form"),
            (["torn", "cert", "key"], "torn (ca=)", "cannot be used"),
            (["cert", "key", "key"], "key (cert=)", "no certificate in PEM form"),
            (["cert", "cert", "missing"], "missing (key=)", "cannot read"),
            (["cert", "cert", "cert"], "cert (key=)", "cannot be used"),
            (["cert", "cert", "other"], "other (key=)", "does not fit the certificate in"),
        ] {
            let error = config(names).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Invalid);
            let said = error.to_string();
            assert!(said.contains(why) && said.contains(&format!("/{file}")), "{said}");
        }
    }
}
