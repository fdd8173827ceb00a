//! All commands, in the order of tasks, and where each of them is carried out.

use clap::Subcommand;

use crate::{
    account, action, archive, catalogue, console::Console, delivery, doctor, endpoint, esim_change,
    find, master_key, migrate, operator, option, order, partner, placement, price, provider,
    recover, resend, retention, secret_set, status,
};

#[derive(Subcommand, Clone, Debug)]
pub enum EsimctlCommand {
    // In the order of tasks: what is wrong, what is it about, what can be done, and then the
    // upkeep.
    /// Examine the system, and say how to mend what is wrong
    ///
    /// It looks at PostgreSQL, roles, keys, NATS, stages, waiting work, name servers, the console's
    /// OpenID provider and backups, and changes nothing. It does not look at the console, whose
    /// `/readyz` says whether it runs.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Say what is wrong, since when, who is affected and what to do
    #[command(after_help = status::ATTENTION_EXAMPLES)]
    Attention(status::Attention),
    /// Show what is wrong, the stages, what waits at each provider and endpoint, and figures
    #[command(after_help = status::EXAMPLES)]
    Status(status::StatusArgs),
    /// Find orders and partners by any id, number or name
    #[command(after_help = find::EXAMPLES)]
    Find(find::FindArgs),
    /// Show a stored order stage by stage, or erase it
    #[command(subcommand)]
    Order(order::OrderCommand),
    /// List placements, each of which is one purchase, and resolve parked ones
    #[command(subcommand)]
    Placement(placement::PlacementCommand),
    /// List give-backs of delivered eSIMs that are parked, and resolve them
    #[command(subcommand)]
    GiveBack(esim_change::GiveBackCommand),
    /// List extensions of delivered eSIMs that are parked, and resolve them
    #[command(subcommand)]
    Extension(esim_change::ExtensionCommand),
    /// Show webhooks with their attempts
    #[command(subcommand)]
    Delivery(delivery::DeliveryCommand),
    /// Send webhooks again: one, or those of one or all partners
    #[command(subcommand)]
    Resend(resend::ResendCommand),
    /// List partners' webhook endpoints, and pause or resume them
    #[command(subcommand)]
    Endpoint(endpoint::EndpointCommand),
    /// List providers, open or close their breakers, try and reconcile their accounts
    #[command(subcommand)]
    Provider(provider::ProviderCommand),
    /// Create and change partner accounts, their keys and webhook URLs
    #[command(subcommand)]
    Partner(partner::PartnerCommand),
    /// List the options that partners may order, apply a file of them, and take one out of sale
    #[command(subcommand)]
    Option(option::OptionCommand),
    /// List, set and assign price lists, which say what options cost partners
    #[command(subcommand)]
    Price(price::PriceCommand),
    /// Show partners' balances, set limits, book payments, export and check entries
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Import products and prices of a provider as options
    #[command(subcommand)]
    Catalogue(catalogue::CatalogueCommand),
    /// Show what operators and partners changed, and why
    #[command(subcommand)]
    Action(action::ActionCommand),
    /// After a restore: look up every unfinished purchase before anything is bought
    #[command(after_help = recover::EXAMPLES)]
    Recover(recover::RecoverArgs),
    /// Show and set how long profiles, attempts and recorded actions are kept
    #[command(subcommand)]
    Retention(retention::RetentionCommand),
    /// Export finished orders into files and delete them
    #[command(subcommand)]
    Archive(archive::ArchiveCommand),
    /// Bring the database's schema to this version
    ///
    /// Run it before the services of this version start. If the database server cannot be reached
    /// yet, the command tries again for up to 30 seconds, so it can be started together with the
    /// server.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::MigrateArgs),
    /// Create all secrets of a new system, and hand each service its share
    #[command(subcommand)]
    Secrets(secret_set::SecretsCommand),
    /// Create and replace the keys that encrypt the stored secrets
    #[command(subcommand)]
    MasterKey(master_key::MasterKeyCommand),
    /// Create operators who sign in at the console, and change what they may do
    #[command(subcommand)]
    Operator(operator::OperatorCommand),
}

pub async fn dispatch(command: &EsimctlCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        EsimctlCommand::Partner(command) => partner::run(command, console).await,
        EsimctlCommand::Option(command) => option::run(command, console).await,
        EsimctlCommand::Price(command) => price::run(command, console).await,
        EsimctlCommand::Account(command) => account::run(command, console).await,
        EsimctlCommand::Catalogue(command) => catalogue::run(command, console).await,
        EsimctlCommand::Delivery(command) => delivery::run(command, console).await,
        EsimctlCommand::Endpoint(command) => endpoint::run(command, console).await,
        EsimctlCommand::Order(command) => order::run(command, console).await,
        EsimctlCommand::Placement(command) => placement::run(command, console).await,
        EsimctlCommand::GiveBack(command) => esim_change::give_back(command, console).await,
        EsimctlCommand::Extension(command) => esim_change::extension(command, console).await,
        EsimctlCommand::Provider(command) => provider::run(command, console).await,
        EsimctlCommand::Retention(command) => retention::run(command, console).await,
        EsimctlCommand::Archive(command) => archive::run(command, console).await,
        EsimctlCommand::Action(command) => action::run(command, console).await,
        EsimctlCommand::Resend(command) => resend::run(command, console).await,
        EsimctlCommand::Operator(command) => operator::run(command, console).await,
        EsimctlCommand::Find(command) => find::run(command, console).await,
        EsimctlCommand::Status(command) => status::run(command, console).await,
        EsimctlCommand::MasterKey(command) => master_key::run(command, console).await,
        EsimctlCommand::Secrets(command) => secret_set::run(command, console),
        // Their exit status says more than success or failure, so `execute` runs them.
        EsimctlCommand::Doctor(command) => doctor::run(command, console).await.map(drop),
        EsimctlCommand::Attention(command) => status::attention(command, console).await.map(drop),
        EsimctlCommand::Migrate(command) => migrate::run(command, console).await,
        EsimctlCommand::Recover(command) => recover::run(command, console).await,
    }
}
