#!/usr/bin/env bash
# Outputs at small scale, on PTB: each pair has equal epochs and settings, and but for the
# ensemble's second member an equal seed.
# Usage: DUALNET_DATA=FOLDER_WITH_ptb benchmarks/ptb_outputs.sh OUTPUT [PART ...]
set -euo pipefail
output=${1:?usage: benchmarks/ptb_outputs.sh OUTPUT [PART ...]}
shift
parts=${*:-base mixture doc gate cache ensemble dual dual_doc words}
mkdir -p "$output"

train() { # FOLDER CARD OPTION ...
    local folder=$1 card=$2
    shift 2
    if [ ! -e "$output/$folder/results.json" ]; then
        dualnet train "$card" --corpus ptb --output "$output/$folder" --quiet "$@"
    fi
    show "$folder"
}

show() { # FOLDER OPTION ...
    local folder=$1
    shift
    for split in valid test; do
        echo -n "$folder $* $split: "
        dualnet evaluate "$output/$folder" --split $split "$@" | head -n 1
    done
}

small=(batch_size=64 sequence_length=35 learning_rate=0.004 clipnorm=1 units=128
    input_dropout=0.2 output_dropout=0.2 recurrent_dropout=0 internal_dropout=0.2 embedding_l2=0)
plain=("${small[@]}" recurrent_layers=2 output_bias=true)
dual=("${small[@]}" rounds=4 rank=32 dual_input_dropout=0.2 dual_output_dropout=0.2 dual_l2=0
    output_bias=true)
for part in $parts; do
    case $part in
    base) train base lstm --epochs 4 --seed 0 --set "${plain[@]}" ;;
    mixture)
        train mixture lstm --epochs 4 --seed 0 --set "${plain[@]}" \
            experts=6 latent_dropout=0.2 latent_dropout_per_expert=true
        ;;
    doc)
        train doc lstm --epochs 4 --seed 0 --set "${plain[@]}" \
            'experts=[0, 2, 4]' latent_dropout=0.2 balance_regularization=0.001
        ;;
    gate)
        if [ ! -e "$output/gate/results.json" ]; then
            dualnet gate "$output/base" --output "$output/gate" --quiet --epochs 2
        fi
        show gate
        ;;
    cache) show base --cache size=500 weight=0.1 scale=0.3 ;;
    ensemble)
        train base_1 lstm --epochs 4 --seed 1 --set "${plain[@]}"
        [ -e "$output/ensemble" ] || dualnet ensemble "$output/base" "$output/base_1" \
            --output "$output/ensemble"
        show ensemble
        ;;
    dual) train dual dual_mdlstm --epochs 3 --seed 0 --set "${dual[@]}" ;;
    dual_doc)
        train dual_doc dual_mdlstm --epochs 3 --seed 0 --set "${dual[@]}" \
            'experts=[0, 2, 0, 4]' latent_dropout=0.2 balance_regularization=0.001
        ;;
    words)
        python - "$output/gate" <<'PYTHON'
import sys

import dualnet

gated = dualnet.load(sys.argv[1])
corpus = dualnet.corpora.load("ptb", vocabulary=gated.vocabulary)
found = dualnet.analysis.favoured_words(gated, ["of", "in", "go"], corpus_tokens=corpus.train)
for word, favoured in found.items():
    print(f"after {word!r}:", ", ".join(f"{other} {value:.3f}" for other, value in favoured))
PYTHON
        ;;
    esac
done
