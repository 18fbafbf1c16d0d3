//! env create: a composition gets a name.

use libdsec::{Client, EnvironmentRequest, LayerKind};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Sandboxes are created of an environment as of an image. It holds its images as they are now, whatever their names mean
later; those of a kind named by --follow mean what their name means when a sandbox is created.

Examples:
  dsec env create task-17:1 --image debian:12 --workspace task-17 --toolkit tools
  dsec env create task-17 --image debian:12 --workspace task-17 --toolkit tools --follow toolkit
  dsec create task-17 -n 8")]
pub(crate) struct Args {
    /// NAME or NAME:VERSION [default version: latest]
    environment: String,
    /// The base
    #[arg(long, short)]
    image: String,
    /// A workspace over it; may be given more than once
    #[arg(long = "workspace", value_name = "IMAGE")]
    workspaces: Vec<String>,
    /// A toolkit on top; may be given more than once
    #[arg(long = "toolkit", value_name = "IMAGE")]
    toolkits: Vec<String>,
    /// Images of this kind mean what their name means at each create
    #[arg(long, value_enum, value_name = "KIND")]
    follow: Vec<Follow>,
    /// Over the base's environment
    #[arg(long = "env", short, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
    /// User of commands [default: the base's]
    #[arg(long, short)]
    user: Option<String>,
    /// Working directory of commands [default: the base's]
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<String>,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum Follow {
    Base,
    Workspace,
    Toolkit,
}

impl From<Follow> for LayerKind {
    fn from(follow: Follow) -> Self {
        match follow {
            Follow::Base => Self::Base,
            Follow::Workspace => Self::Workspace,
            Follow::Toolkit => Self::Toolkit,
        }
    }
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let (name, version) = args.environment.split_once(':').unwrap_or((&args.environment, "latest"));
    let request = EnvironmentRequest {
        name: name.to_owned(),
        version: version.to_owned(),
        image: args.image,
        workspaces: args.workspaces,
        toolkits: args.toolkits,
        follow: args.follow.into_iter().map(LayerKind::from).collect(),
        env: args.env.into_iter().collect(),
        user: args.user,
        workdir: args.workdir,
    };
    let made = Client::from_env()?.environments().create(request).await?;
    if json {
        print::json(&made)?;
    } else {
        let (layers, size) = (made.layers.len(), units::size(made.size_bytes));
        let plural = if layers == 1 { "" } else { "s" };
        let digest = made.digest.as_deref().unwrap_or("-");
        print::line(format_args!(
            "{}:{}  {layers} layer{plural}, {size}  {digest}",
            made.name, made.version
        ))?;
    }
    Ok(0)
}
