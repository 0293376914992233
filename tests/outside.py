"""Packages outside of this tree, as installed by `pip install`."""


def install(folder, entry_points, package="sample", **modules):
    """Write a package to a folder: its modules, and the metadata of an installed package."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = ["[paceline.strategies]", *(f"{name} = {leads_to}" for name, leads_to in entry_points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
