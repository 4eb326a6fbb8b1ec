"""The request files that come with the experiments.

What the numbers are from can be told of every run (`Workload.source`); data/README.md says more of each file.
"""

from pathlib import Path

from jpaged.workloads import TraceFile

DATA = Path(__file__).parent / "data"
AZURE = "CC-BY-4.0, cite Patel et al., Splitwise, ISCA 2024"
# Of the repository that publishes the lengths; the conversations, of which nothing is here, have terms of their own.
ETALON, APEX = "Apache-2.0, lengths only", "MIT, lengths only"
MOONCAKE_BLOCK = 512


def _trace(file: str, source: str, licence: str, prefix_unit: int | None = None) -> TraceFile:
    return TraceFile(path=DATA / file, source=source, licence=licence, prefix_unit=prefix_unit)


TRACES: dict[str, TraceFile] = {
    "small": _trace("workload_small.csv", "made for jpaged", "Apache-2.0"),
    "sharegpt_pairs": _trace(
        "sharegpt_pairs.csv.gz",
        "integers read from the public artifact of the PagedAttention paper",
        "no licence stated",
    ),
    "azure_conversation": _trace("traces/azure2023_conv.csv", "Azure/AzurePublicDataset", AZURE),
    "azure_code": _trace("traces/azure2023_code.csv", "Azure/AzurePublicDataset", AZURE),
    "mooncake_conversation": _trace("traces/mooncake_conversation.csv", "kvcache-ai/Mooncake", "Apache-2.0"),
    "mooncake_conversation_blocks": _trace(
        "traces/mooncake_conversation_blocks.jsonl.gz", "kvcache-ai/Mooncake", "Apache-2.0", MOONCAKE_BLOCK
    ),
    "mooncake_synthetic": _trace("traces/mooncake_synthetic.csv", "kvcache-ai/Mooncake", "Apache-2.0"),
    "mooncake_synthetic_blocks": _trace(
        "traces/mooncake_synthetic_blocks.jsonl.gz", "kvcache-ai/Mooncake", "Apache-2.0", MOONCAKE_BLOCK
    ),
    "sharegpt_multiturn": _trace("traces/sharegpt_multiturn.csv", "project-etalon/etalon", ETALON),
    "sharegpt_first_turn": _trace("traces/sharegpt_first_turn.csv", "project-etalon/etalon", ETALON),
    "bwb": _trace("traces/bwb.csv", "project-etalon/etalon", ETALON),
    "arxiv_summarization": _trace("traces/arxiv_summarization.csv", "project-etalon/etalon", ETALON),
    "lmsys_chat": _trace("traces/lmsys_chat.csv", "microsoft/apex_plus", APEX),
    "creation": _trace("traces/creation.csv", "microsoft/apex_plus", APEX),
    "burstgpt_head": _trace(
        "traces/burstgpt_head38.csv", "HPMLL/BurstGPT", "CC-BY-4.0, cite Wang et al., BurstGPT, KDD 2025"
    ),
}
