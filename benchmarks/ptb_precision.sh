#!/usr/bin/env bash
# Does a model learn as well in bfloat16? The dual LSTM of 600 units, 10 epochs of PTB, one seed
# (docs/results.md).
# Usage: DUALNET_DATA=FOLDER_WITH_ptb benchmarks/ptb_precision.sh OUTPUT
set -euo pipefail
output=${1:?usage: benchmarks/ptb_precision.sh OUTPUT}
for policy in float32 mixed_bfloat16; do
    dualnet train dual_lstm --corpus ptb --output "$output/$policy" --epochs 10 --seed 1 \
        --set dtype_policy=$policy
done
tail -n 1 "$output"/*/metrics.csv
