from sjepa.cli import main

main()
