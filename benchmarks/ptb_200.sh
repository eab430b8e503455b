#!/usr/bin/env bash
# A plain and a dual LSTM of 200 units, 6 epochs of PTB each (docs/results.md).
# Usage: DUALNET_DATA=FOLDER_WITH_ptb benchmarks/ptb_200.sh OUTPUT
set -euo pipefail
output=${1:?usage: benchmarks/ptb_200.sh OUTPUT}
recipe=(units=200 input_dropout=0.3 output_dropout=0.3 recurrent_dropout=0 embedding_l2=0)
dual=(dual_input_dropout=0 dual_output_dropout=0 dual_l2=0)
dualnet train lstm --corpus ptb --output "$output/lstm" --epochs 6 --set "${recipe[@]}"
dualnet train dual_lstm --corpus ptb --output "$output/dual_lstm" --epochs 6 \
    --set "${recipe[@]}" "${dual[@]}"
for name in lstm dual_lstm; do
    for split in valid test; do
        dualnet evaluate "$output/$name" --split $split
        dualnet evaluate "$output/$name" --split $split --dynamic --rule nadam
        dualnet evaluate "$output/$name" --split $split --dynamic --rule sgd
    done
done
