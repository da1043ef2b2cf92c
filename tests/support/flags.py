"""The flags of the inference server, including flags without effect."""

from serving.cli.command_line import build_parser


def known_flags() -> set[str]:
    # argparse has no public list of its arguments, and its usage line leaves out arguments without help.
    return {name for action in build_parser()._actions for name in action.option_strings}
