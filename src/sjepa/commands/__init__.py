"""One module per command, with its options as a dataclass and `run(arguments)`."""

# Each command is the module of its name in this folder, imported when it is called.
COMMANDS = {
    "demo": "run the whole pipeline on a small synthetic corpus, in a few minutes",
    "pretrain": "train an encoder on a folder of audio, or continue a run",
    "sweep": "train the runs that one file describes, and compare them on one page",
    "index": "scan folders, known corpora or manifests once, so that they open fast at any size",
    "shard": "pack an index into tar shards for sequential reading, from disk or a URL",
    "plan": "estimate a run: steps, days, storage, network, and the bottleneck",
    "bench": "measure this machine: training step, mixtures, encoder, audio reading",
    "config": "print the settings that a run would use",
    "superb": "evaluate a frozen encoder on a SUPERB task, or on your own labelled data",
    "probe": "probe a frozen encoder for phones, speaker, gender and chapter",
    "units": "measure how well clusters of frames agree with phones",
    "cost": "measure parameters, multiply-accumulates and CPU latency of an encoder",
    "table": "collect the results of many encoders and tasks in one table",
    "export": "export a run's encoder for Hugging Face, ONNX or torch.export, with a model card",
    "embed": "write features, posteriors or units of audio files of any length",
    "analyze": "draw a figure of a run: entropy, utterance, effective rank, Pareto front, progress, clusters",
    "figures": "draw the paper's figures and tables from existing results, as PDF and SVG",
    "report": "write one page about a run, or about several, with an utterance explorer",
    "watch": "show a live view of a run in progress",
    "runs": "list runs with their state, step, loss and results, or show the history of one",
}
